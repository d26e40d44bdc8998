"""How much simulated devices work at the same time, by the clocks of their streams and not by a watch.

Each operation takes one unit; it begins when that before it on its stream is over, and whatever its stream has waited
for. So what comes of it is what devices could do that are equally fast, wherever threads and the host are: two that
never wait for each other do twice as much as one in the same time.
"""

from __future__ import annotations

import contextlib
import threading
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, field
from unittest import mock

from dovetail.runtime.devices.accelerator import accelerator_of
from dovetail.runtime.executor import Executor
from dovetail.runtime.sim.streams import Stream
from dovetail.runtime.steps import Step, Steps, Values


@dataclass
class Overlap:
    """Units of work of each device, and those that go by until all is done."""

    work: dict[int, int] = field(default_factory=lambda: defaultdict(int))
    units: int = 0

    @property
    def factor(self) -> float:
        """How many times as much is done as by one device in the same time."""
        return sum(self.work.values()) / max(1, self.units)


class _Clock:
    """When each operation of each stream is over, of those that were launched since this began."""

    def __init__(self, found: Overlap) -> None:
        self._found = found
        self._over: dict[int, dict[int, int]] = defaultdict(dict)
        self._lock = threading.Lock()
        self.within = threading.local()

    def note(self, stream: Stream, takes: int) -> None:
        """Notes the operation that was launched last on a stream."""
        with self._lock:
            known = [self._over[number].get(time, 0) for number, time in stream.clock.items()]
            end = takes + max((*known, self._over[stream.number].get(stream.now - 1, 0)))
            self._over[stream.number][stream.now] = end
            self._found.work[stream.device.index] += takes
            self._found.units = max(self._found.units, end)


@contextlib.contextmanager
def overlap_of(name: str) -> Iterator[Overlap]:
    """Counts the operations of programs of a name that are issued meanwhile, and in how many units they are done.

    Copies between devices take none.
    """
    found = Overlap()
    clock, launch, issue = _Clock(found), Stream.launch, Executor._issue

    def launched(stream: Stream) -> int:
        time = launch(stream)
        clock.note(stream, int(getattr(clock.within, "is_on", False) and not _is_for_copies(stream)))
        return time

    def issued(executor: Executor, steps: Steps, values: Values) -> None:
        ours = executor._program.name == name
        issue(executor, {at: _within(clock, step) for at, step in steps.items()} if ours else steps, values)

    with mock.patch.object(Stream, "launch", launched), mock.patch.object(Executor, "_issue", issued):
        yield found


def _is_for_copies(stream: Stream) -> bool:
    sides = accelerator_of(stream.device)._side_streams  # type: ignore[attr-defined]
    return any(isinstance(purpose, tuple) and one is stream for purpose, one in sides.items())


def _within(clock: _Clock, step: Step) -> Step:
    def run(values: Values) -> None:
        clock.within.is_on = True
        try:
            step(values)
        finally:
            clock.within.is_on = False

    return run
