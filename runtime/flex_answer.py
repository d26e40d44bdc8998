"""What answers calls of PyTorch's flex attention in a thread in the place of computing them, if something does."""

from __future__ import annotations

from collections.abc import Callable
from contextvars import ContextVar

import torch

Answer = Callable[[torch.Tensor, torch.Tensor, torch.Tensor], torch.Tensor]

FLEX_ANSWER: ContextVar[Answer | None] = ContextVar("dovetail answer of flex attention", default=None)
"""Given query, key and value; a plan has zeros, where all scores would be there at once. ``sim/flex.py`` asks it."""
