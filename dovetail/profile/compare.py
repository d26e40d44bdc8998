"""Predicted against measured: how long each segment, copy and load of a trace takes in a call, on either side."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass

from .chrome import MEASURED, PREDICTED, Slice
from .sides import CALLS

_SIDES = (PREDICTED, MEASURED)
_LEAST = 1e-6
"""The seconds below which a prediction is no ground for a ratio."""


@dataclass(frozen=True)
class Compared:
    """Seconds in a call of what a lane does, on either side; None where that side has it not."""

    program: str
    lane: str
    what: str
    calls: int
    predicted: float | None
    measured: float | None

    @property
    def ratio(self) -> float | None:
        """Measured over predicted, where both are known and a microsecond or more is predicted."""
        is_known = self.measured is not None and self.predicted is not None and self.predicted >= _LEAST
        return self.measured / self.predicted if is_known else None  # type: ignore[operator]


def compared(slices: Iterable[Slice]) -> list[Compared]:
    """A row for each thing that a lane does in the calls of a program, in the order in which they come.

    A side's seconds are those of all its slices by the number of its calls: a segment that waits is in several.
    """
    seconds: dict[tuple[str, str, str], dict[str, float]] = defaultdict(lambda: defaultdict(float))
    calls: dict[tuple[str, str], int] = defaultdict(int)
    for one in slices:
        seconds[one.program, one.lane, one.what][one.group] += one.end - one.start
        calls[one.program, one.group] += one.lane == CALLS
    return [
        Compared(
            program,
            lane,
            what,
            calls[program, MEASURED],
            *(sides[side] / max(1, calls[program, side]) if side in sides else None for side in _SIDES),
        )
        for (program, lane, what), sides in seconds.items()
    ]
