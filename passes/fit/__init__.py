"""Finds where the components of a pipeline run and rest: least predicted time under every budget."""
