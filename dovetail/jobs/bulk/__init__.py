"""A list of prompts, painted one after another or by replicas, with a file that says what is done."""
