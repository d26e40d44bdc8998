"""The kernel of ``dovetail.sum_terms``: adds in the order of the devices, and rounds once."""

from __future__ import annotations

import torch
from torch import Tensor

from ..compiler.ir.ops import LIBRARY


def _sum(terms: Tensor, dtype: torch.dtype | None = None) -> Tensor:
    """Short floats are added in float32; all others in their own dtype."""
    is_short = terms.dtype in (torch.bfloat16, torch.float16)
    found = terms[0].to(torch.float32) if is_short else terms[0].clone()
    for one in terms[1:]:
        found += one
    dtype = terms.dtype if dtype is None else dtype
    return found.to(dtype)


LIBRARY.impl("sum_terms", _sum, "CompositeExplicitAutograd")
