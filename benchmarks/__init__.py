"""Measurements whose figures the documentation quotes; each prints a table of ratios taken in one run."""
