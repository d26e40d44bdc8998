"""Finds what repeats in a row of things, so that a drawing shows it once with how often it comes."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass

_LONGEST = 8
"""Repeats of more things than so many are not looked for."""


@dataclass(frozen=True)
class Repeat:
    """Things from ``start`` on: ``period`` of them, ``count`` times in a row."""

    start: int
    period: int = 1
    count: int = 1

    @property
    def stop(self) -> int:
        """The place after the last of them."""
        return self.start + self.period * self.count


def repeats(kinds: Sequence[Hashable]) -> list[Repeat]:
    """The row of things by what repeats in it; equal kinds are alike. At each place what covers most is taken.

    >>> [(one.start, one.period, one.count) for one in repeats("axyxyb")]
    [(0, 1, 1), (1, 2, 2), (5, 1, 1)]
    """
    found: list[Repeat] = []
    at = 0
    while at < len(kinds):
        found.append(_at(kinds, at))
        at = found[-1].stop
    return found


def _at(kinds: Sequence[Hashable], start: int) -> Repeat:
    best = Repeat(start)
    for period in range(1, min(_LONGEST, (len(kinds) - start) // 2) + 1):
        one = Repeat(start, period, _count(kinds, start, period))
        if one.count > 1 and one.stop > best.stop:
            best = one
    return best


def _count(kinds: Sequence[Hashable], start: int, period: int) -> int:
    first, count = kinds[start : start + period], 1
    while kinds[start + count * period : start + (count + 1) * period] == first:
        count += 1
    return count
