"""Terms of float32 sums that cross between devices in bfloat16: half the bytes, and other bits.

Each device rounds its term once, also that which it keeps, so that all devices add up the same numbers: in float32, in
the order of the devices. A small sum, such as the statistics of a norm, crosses as it is: it would gain nothing.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from torch.fx import Node

from ...compiler.errors import UsageError
from ...compiler.ir.program import Program, tensors_of
from ...compiler.ir.state import PARTIAL
from ...compiler.spec.modes import SHORT_TERMS
from ...compiler.states.strategy import Strategy
from .shares import is_small_sum

SHORT: torch.dtype = getattr(torch, SHORT_TERMS)


def can_be_short(sizes: Sequence[int], dtype: torch.dtype) -> bool:
    """Whether terms of a sum may cross in half the bytes: those of float32, unless the sum is small."""
    return dtype == torch.float32 and not is_small_sum(sizes, dtype.itemsize)


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
    dtypes = ", ".join(sorted({str(one.dtype).removeprefix("torch.") for one in sums}))
    raise UsageError(
        f"{program.name} sends no terms of float32 sums that bf16_partials (--bf16-partials) would halve: "
        + (f"its sums are small, or of {dtypes} values" if sums else "its devices add nothing up")
        + "; leave it out, or compute in float32 (--dtype float32)"
    )
