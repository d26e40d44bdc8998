"""Rows that limit bytes, stated by what choices take beyond the least.

Of choices of which one is made each takes at least as much as the least of them. That is taken off the limit, and off
all of them: a choice that takes more than is left then cannot be made, whatever else is. Without this a solver makes a
part of it, and its bound is far from what can be.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

_CLOSE = 1e-6  # so much of a limit is rounding


@dataclass(frozen=True)
class Slack:
    """What choices take beyond the least, by column, and how much of that there may be; less than none is too much."""

    terms: Mapping[int, float]
    left: float
    least: float

    @property
    def is_none(self) -> bool:
        """Whether the least is more than there may be."""
        return self.left < -_CLOSE

    def beyond(self, left: float) -> list[int]:
        """The columns that alone take more than so much."""
        return [column for column, value in self.terms.items() if value > left + _CLOSE]


def beyond_least(terms: Mapping[int, float], limit: float, rivals: Iterable[Sequence[int]]) -> Slack:
    """What columns take beyond the least of those of which exactly one is chosen; of no column it is less than none."""
    found, least = dict(terms), 0.0
    for columns in rivals:
        own = min((found.get(column, 0.0) for column in columns), default=0.0)
        if own > 0:
            least += own
            found.update({column: found[column] - own for column in columns})
    return Slack({column: value for column, value in found.items() if value}, limit - least, least)
