"""Whole pipelines of diffusers, with tiny components."""
