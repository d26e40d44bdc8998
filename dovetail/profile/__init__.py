"""Predicted and measured time lines of a generation, side by side in one trace."""
