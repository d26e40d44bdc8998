"""Adapters: what peft attached, what was asked for by name, loading and merging."""
