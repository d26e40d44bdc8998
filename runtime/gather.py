"""Puts the parts of a split value together in memory that was set aside for the whole."""

from __future__ import annotations

import torch

from ..compiler.ir.ops import LIBRARY


def landing(like: torch.Tensor, columns: int, dtype: torch.dtype) -> torch.Tensor:
    """Memory for a value of the leading sizes of ``like`` on its device; what is in it does not matter yet."""
    return torch.empty((*like.shape[:-1], columns), dtype=dtype, device=like.device)


def gather(out: torch.Tensor, parts: list[torch.Tensor]) -> torch.Tensor:
    """The parts side by side in the last dimension of ``out``; one that has landed in its place is not copied."""
    start = 0
    for part in parts:
        place = out.narrow(-1, start, part.shape[-1])
        if part.data_ptr() != place.data_ptr():
            place.copy_(part)
        start += part.shape[-1]
    return out


LIBRARY.impl("landing", landing, "CompositeExplicitAutograd")
LIBRARY.impl("gather", gather, "CompositeExplicitAutograd")
