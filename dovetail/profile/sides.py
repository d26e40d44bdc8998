"""The two sides of a trace: what a time line predicts of each call, and what was measured of it."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import accumulate

from ..compiler.devices.speeds import Speeds
from ..compiler.ir.program import Program
from ..passes.simulate.timeline import Timeline, timeline
from ..runtime.devices.recording import Measured, MeasuredCall, Recording
from .chrome import MEASURED, PREDICTED, Slice

CALLS = "calls"


def predicted_slices(programs: Mapping[str, Program], speeds: Speeds) -> Iterator[Slice]:
    """One call of each program, one after another; programs without a schedule are left out."""
    start = 0.0
    for name, program in programs.items():
        if program.schedule is not None:
            line = timeline(program, speeds)
            yield from _predicted(name, line, start)
            start += line.seconds


def slices_of(recording: Recording, names: Mapping[Program, str], speeds: Speeds) -> list[Slice]:
    """Every call that was measured, and what is predicted of it from when it began, or the one before it would end.

    Args:
        recording: what was measured.
        names: what programs are called.
        speeds: of the devices, by which is predicted.
    """
    lines: dict[Program, Timeline] = {}
    calls = sorted(recording.calls, key=lambda one: one.start)
    begin = min([*(one.start for one in calls), *(one.start for one in recording.spans)], default=0.0)
    predicted: list[Slice] = []
    free = 0.0
    for call in calls:
        line = lines.get(call.program) or timeline(call.program, speeds)
        lines[call.program] = line
        start = max(free, call.start - begin)  # what is predicted to take longer pushes the next call on
        predicted += _predicted(_name(call, names), line, start)
        free = start + line.seconds
    return [*predicted, *_measured(calls, recording.spans, names, begin)]


def _predicted(name: str, line: Timeline, start: float) -> Iterator[Slice]:
    yield Slice(PREDICTED, CALLS, name, start, start + line.seconds, name)
    for one in line.spans:
        yield Slice(PREDICTED, one.lane, one.what, start + one.start, start + one.end, name)


def _measured(
    calls: Sequence[MeasuredCall], spans: Sequence[Measured], names: Mapping[Program, str], begin: float
) -> Iterator[Slice]:
    for call in calls:
        name = _name(call, names)
        yield Slice(MEASURED, CALLS, name, call.start - begin, call.end - begin, name)
    call_at = _finder(calls)
    for one in sorted(spans, key=lambda one: one.start):
        within = call_at(one.start)
        name = _name(within, names) if within else ""
        yield Slice(MEASURED, one.lane, one.what, one.start - begin, one.end - begin, name)


def _finder(calls: Sequence[MeasuredCall]) -> Callable[[float], MeasuredCall | None]:
    """Finds the call that a moment is in, of several the one that began last; calls are sorted by their starts."""
    starts = [call.start for call in calls]
    until = list(accumulate((call.end for call in calls), max))

    def find(moment: float) -> MeasuredCall | None:
        index = bisect_right(starts, moment) - 1
        while index >= 0 and moment <= until[index]:
            if moment <= calls[index].end:
                return calls[index]
            index -= 1
        return None

    return find


def _name(call: MeasuredCall, names: Mapping[Program, str]) -> str:
    return names.get(call.program, call.program.name)
