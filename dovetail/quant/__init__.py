"""Packs the weights of components while they are loaded, and keeps what was packed for the next start."""

from .asked import Quant, read_quant
from .packing import Packing

__all__ = ["Packing", "Quant", "read_quant"]
