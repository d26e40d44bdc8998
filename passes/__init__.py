"""Passes: IR to IR, and IR to schedule, one file each."""
