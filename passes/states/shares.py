"""Where an axis is cut: in proportion to the shares of devices, on multiples of its unit."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate, pairwise
from math import prod

from ...compiler.ir.slices import Bounds, bounds_of
from ...compiler.ir.state import WHOLE, Split, Whole

SMALL_SUM = 2**16
"""The most bytes of a sum, such as statistics of a norm, of which each device is sent all terms: fewer than cross in
the time that another exchange takes to begin."""


def cut_in_units(size: int, shares: Sequence[int], unit: int = 1) -> Bounds:
    """The range of each device along an axis of which no unit is torn; the last unit may be a short one.

    Units go to devices by largest remainder: each has its share rounded down, and those that lost most by that have one
    more. A share of nothing gets nothing.

    >>> [stop - start for start, stop in cut_in_units(30, (1, 1, 1, 1))]
    [8, 8, 7, 7]
    >>> cut_in_units(24 * 64, (5, 3, 2), 64)
    ((0, 768), (768, 1216), (1216, 1536))
    """
    counts = _largest_remainders(-(-size // unit), shares)
    ends = [0, *(min(size, unit * end) for end in accumulate(counts))]
    return tuple(pairwise(ends))


def parts_of_sum(sizes: Sequence[int], count: int) -> Split:
    """The part of a sum that each of some devices adds up before all of them get the whole: as much as any other."""
    axis = max(range(len(sizes)), key=lambda one: (min(sizes[one], count), -one))
    return Split(axis, (bounds_of(sizes[axis], [1] * count),))


def state_of_sum(sizes: Sequence[int], itemsize: int, count: int) -> Split | Whole:
    """What each of some devices adds up of a sum of which all want the whole.

    Of a small one all of it: the terms cross once, and no parts after them. Else a part, as much as any other.
    """
    return WHOLE if is_small_sum(sizes, itemsize) else parts_of_sum(sizes, count)


def is_small_sum(sizes: Sequence[int], itemsize: int) -> bool:
    """Whether a sum is small."""
    return prod(sizes) * itemsize <= SMALL_SUM


def _largest_remainders(count: int, shares: Sequence[int]) -> list[int]:
    total = sum(shares)
    found = [count * share // total for share in shares]
    lost = sorted(range(len(shares)), key=lambda member: -(count * shares[member] % total))
    for member in lost[: count - sum(found)]:
        found[member] += 1
    return found
