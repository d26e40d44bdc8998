"""Which rows of a weight each device gets when its rows are split."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate, pairwise
from math import floor

Bounds = tuple[tuple[int, int], ...]
"""For each device the first row and the one after the last; empty for a device that gets none."""


def bounds_of(rows: int, shares: Sequence[float]) -> Bounds:
    """The rows of each device, in proportion to the shares; a share that rounds to nothing gets none.

    The sums of the shares are rounded, not the shares: the ranges meet, and each is less than a row from its share.

    >>> bounds_of(10, (2, 1, 1))
    ((0, 5), (5, 8), (8, 10))
    """
    sums = list(accumulate(shares))
    ends = [0, *(floor(rows * part / sums[-1] + 0.5) for part in sums)]
    return tuple(pairwise(ends))


def cover(bounds: Bounds, rows: int | str) -> bool:
    """Whether ranges follow one another from the first row to the last of so many.

    >>> cover(((0, 5), (5, 5), (5, 10)), 10), cover(((0, 5), (6, 10)), 10)
    (True, False)
    """
    ends = [0, *(stop for _, stop in bounds)]
    return [start for start, _ in bounds] == ends[:-1] and ends == sorted(ends) and ends[-1] == rows
