"""Checks of a program and its schedule: rules, replay, translation, and runs on tensors without data."""
