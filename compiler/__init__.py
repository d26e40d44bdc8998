"""From a model to the program: tracing, the IR, devices, placement specs, weights and plans."""
