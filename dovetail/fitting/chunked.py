"""Finds in how many chunks components are computed on devices that are settled, by lowering them.

Where all fits as it is and no weight comes and goes with its block, nothing is taken apart. Else the numbers are tried
for all components together, and what is quickest is taken; then each component gets the fewest with which it is as
quick. Seconds are those of the lowered schedules.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from ..passes.fit.search import SLACK

Counts = Mapping[str, int]
"""Numbers of chunks by component; what is not in it is whole."""


@dataclass(frozen=True)
class Lowered:
    """What is known of components once they are lowered: the seconds of a picture, and whether weights are streamed."""

    seconds: float
    streams: bool


def least_chunks(
    lowered: Callable[[Counts], Lowered | None], choices: Callable[[], Mapping[str, Sequence[int]]]
) -> Counts:
    """The numbers of chunks of least seconds, as few as that takes; none where nothing fits.

    Args:
        lowered: lowers components in so many chunks; None where they do not fit.
        choices: gives the numbers that may help each component, the fewest first; asked where some are needed.
    """
    whole = lowered({})
    if whole is not None and not whole.streams:
        return {}
    known: dict[tuple[tuple[str, int], ...], float] = {(): whole.seconds if whole else math.inf}

    def seconds(counts: Counts) -> float:
        key = tuple(sorted(counts.items()))
        if key not in known:
            found = lowered(counts)
            known[key] = found.seconds if found else math.inf
        return known[key]

    return _fewest(choices(), seconds)


def _fewest(choices: Mapping[str, Sequence[int]], seconds: Callable[[Counts], float]) -> Counts:
    best: Counts = {}
    least = seconds(best)
    for count in sorted({count for some in choices.values() for count in some}):
        tried = {name: max(one for one in some if one <= count) for name, some in choices.items() if min(some) <= count}
        if seconds(tried) * SLACK < least:
            best, least = tried, seconds(tried)
    for name in best:
        best = next(one for one in _with_fewer(best, name, choices[name]) if seconds(one) <= least * SLACK)
    return best


def _with_fewer(counts: Counts, name: str, choices: Sequence[int]) -> list[Counts]:
    """The same with fewer chunks of a component, the fewest first, and then as it is."""
    others = {one: count for one, count in counts.items() if one != name}
    return [others, *({**others, name: count} for count in choices if count < counts[name]), counts]
