"""Terms of float32 sums that cross between devices in bfloat16: half the bytes, and other bits.

Each device rounds its term once, also that which it keeps, so that all devices add up the same numbers: in float32, in
the order of the devices. A small sum crosses as it is, for it would gain nothing, and so do the statistics of a norm
however many rows there are: all features of a row are moved by what is lost of its mean.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from torch.fx import Node

from ...compiler.errors import UsageError
from ...compiler.ir.program import Program, tensors_of
from ...compiler.ir.state import PARTIAL
from ...compiler.ir.value import TensorType
from ...compiler.spec.modes import SHORT_TERMS
from ...compiler.states.strategy import Strategy
from .shares import is_small_sum

SHORT: torch.dtype = getattr(torch, SHORT_TERMS)


def can_be_short(sizes: Sequence[int], dtype: torch.dtype) -> bool:
    """Whether terms of a sum may cross in half the bytes: those of float32, unless small or of a number a row."""
    return dtype == torch.float32 and not is_small_sum(sizes, dtype.itemsize) and sizes[-1] > 1


def check_short(program: Program, strategies: Mapping[Node, Strategy]) -> None:
    """Raises UsageError where no terms are sent under some states that would be shorter in bfloat16."""
    sums = [
        tensor
        for node, way in strategies.items()
        for tensor, state in zip(tensors_of(node), way.results, strict=True)
        if state == PARTIAL
    ]
    if any(can_be_short(one.sizes, one.dtype) for one in sums):
        return
    raise UsageError(
        f"{program.name} sends no terms of float32 sums that bf16_partials (--bf16-partials) would halve: {_why(sums)}"
    )


def _why(sums: Sequence[TensorType]) -> str:
    """Why none of some sums is sent in fewer bytes, and the way out."""
    others = sorted({str(one.dtype).removeprefix("torch.") for one in sums if one.dtype != torch.float32})
    if not sums:
        return "its devices add nothing up; leave it out"
    if len(others) < len({one.dtype for one in sums}):
        return "its float32 sums are small; leave it out"
    return f"its sums are of {' and '.join(others)} values; leave it out, or compute in float32 (--dtype float32)"
