"""Predicts, from a schedule alone, what running it takes: memory to the byte, and time."""
