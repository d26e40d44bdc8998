"""The kernel of ``dovetail.grouped_mm``: PyTorch's own, which a trace cannot name in every dtype."""

from __future__ import annotations

import torch
from torch import Tensor

from ..compiler.ir.ops import LIBRARY


def _grouped(x: Tensor, weights: Tensor, offs: Tensor) -> Tensor:
    """Rows against the matrix of their group, whose last rows ``offs`` tell."""
    return torch._grouped_mm(x, weights, offs=offs)


LIBRARY.impl("grouped_mm", _grouped, "CompositeExplicitAutograd")
