"""All tiny entries: importing a table adds its entries to it."""

from __future__ import annotations

from . import tiny_encoders, tiny_transformers, tiny_unets, tiny_vaes, tiny_video
from .tiny import TINY

TABLES = (tiny_transformers, tiny_video, tiny_unets, tiny_vaes, tiny_encoders)
NAMES = tuple(TINY)
FIRST = tuple(name for name in NAMES if name.count("-") == name.endswith(("-encode", "-decode")))
"""Without the variants: each class once, encoders and decoders apart."""
CLASSES = {name.partition("-")[0] for name in TINY}
