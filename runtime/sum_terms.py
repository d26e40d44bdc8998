"""The kernel of ``dovetail.sum_terms``: adds in the order of the devices, and rounds once."""

from __future__ import annotations

import torch
from torch import Tensor

from ..compiler.ir.ops import LIBRARY, adding_dtype


def _sum(terms: Tensor, dtype: torch.dtype | None = None) -> Tensor:
    found = _added(terms, adding_dtype(terms.dtype))
    dtype = terms.dtype if dtype is None else dtype
    return found.to(dtype)


def _added(terms: Tensor, dtype: torch.dtype) -> Tensor:
    found = terms[0].clone() if terms.dtype == dtype else terms[0].to(dtype)
    for one in terms[1:]:
        found += one
    return found


LIBRARY.impl("sum_terms", _sum, "CompositeExplicitAutograd")
