"""Replicas: processes of this machine, each with a whole copy of a pipeline on devices of its own."""

from .replicas import Replicas

__all__ = ["Replicas"]
