"""Where the weights of a load lie in the slot that they land in."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate

from .weight import Weight

ALIGNMENT = 256
"""Every weight begins at a multiple of so many bytes, as in memory of its own: kernels are chosen by that too."""


def offsets(weights: Sequence[Weight]) -> tuple[list[int], int]:
    """At which byte of a slot each weight begins, and how many bytes all of them take; a number takes none."""
    ends = list(accumulate(map(aligned, weights), initial=0))
    return ends[:-1], ends[-1]


def aligned(weight: Weight) -> int:
    """The bytes from where a weight begins in a slot to where the next one does."""
    return -(-weight.device_bytes // ALIGNMENT) * ALIGNMENT
