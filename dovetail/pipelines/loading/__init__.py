"""Loads pipelines from what is saved: folders, and single files."""
