"""Whole pipelines: loading, compiling, planning, and giving them back."""
