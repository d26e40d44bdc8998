"""From a schedule to tensors: the executor, transfers and simulated devices."""
