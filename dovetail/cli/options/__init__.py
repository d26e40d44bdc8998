"""The options of commands, and what they become as arguments of a pipeline's call."""
