"""Passes that change what is computed or in which order, not where."""
