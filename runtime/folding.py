"""Which instructions take effect inside the run beside them, where they are due sooner or later than at its edge.

A value that is freed directly after a run is let go of at its last reading. One that is waited for directly before a
run is waited for at its first reading, so that what needs less is launched before. One that is sent directly after a
run is sent as soon as it is made, so that the rest of the run is no reason to wait.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import takewhile

from ..compiler.ir.schedule import Copy, Free, Instruction, Load, Release, Run, State, Wait, resting_place
from ..compiler.spec.devices import Device


@dataclass(frozen=True)
class Folded:
    """What takes effect inside one run: the values it frees and waits for, and the copies that it starts."""

    freed: frozenset[State]
    awaited: frozenset[State]
    sent: tuple[Copy, ...]


@dataclass
class Folding:
    """What takes effect inside each run, by the run's place in the schedule, and the places of all that does."""

    runs: dict[int, Folded] = field(default_factory=dict)
    inside: set[int] = field(default_factory=set)

    @staticmethod
    def of(schedule: Sequence[Instruction]) -> Folding:
        """One pass: an instruction is looked at only by the run before it and the run after it."""
        folding = Folding()
        for place, one in enumerate(schedule):
            if isinstance(one, Run):
                folding._note(schedule, place, one)
        return folding

    def _note(self, schedule: Sequence[Instruction], place: int, run: Run) -> None:
        freed = dict(_freed(schedule, place, run))
        awaited = dict(_awaited(schedule, place, run))
        sent = dict(_sent(schedule, place, run))
        self.runs[place] = Folded(frozenset(freed.values()), frozenset(awaited.values()), tuple(sent.values()))
        self.inside.update(freed, awaited, sent)


def _freed(schedule: Sequence[Instruction], place: int, run: Run) -> Iterator[tuple[int, State]]:
    """The values that a run lets go of at their last reading."""
    reads, device = frozenset(run.reads), run.segment.device
    for at in takewhile(lambda at: isinstance(schedule[at], Free), range(place + 1, len(schedule))):
        one = schedule[at]
        if isinstance(one, Free) and one.value in reads and one.device == resting_place(one.value, device):
            yield at, one.value


def _awaited(schedule: Sequence[Instruction], place: int, run: Run) -> Iterator[tuple[int, State]]:
    """The values that a run waits for at their first reading."""
    reads, device = frozenset(run.reads), run.segment.device
    for at in takewhile(lambda at: isinstance(schedule[at], (Wait, Load)), range(place - 1, -1, -1)):
        one = schedule[at]
        if isinstance(one, Wait) and one.value in reads and one.device == one.target == device:
            yield at, one.value


def _sent(schedule: Sequence[Instruction], place: int, run: Run) -> Iterator[tuple[int, Copy]]:
    """The copies that a run starts when it has made what they send."""
    yields, device = frozenset(run.yields), run.segment.device
    gone: set[tuple[State, Device]] = set()
    for at in takewhile(lambda at: isinstance(schedule[at], (Free, Release, Copy)), range(place + 1, len(schedule))):
        one = schedule[at]
        if isinstance(one, Free):
            gone.add((one.value, one.device))
        elif isinstance(one, Copy) and one.source == device:
            value = State(one.value.node)
            if value in yields and (value, one.source) not in gone:
                yield at, one
