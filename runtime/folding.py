"""Which instructions take effect inside the run beside them, where they are due sooner or later than at its edge.

A value that is freed directly after a run is let go of at its last reading. One that is waited for directly before a
run is waited for at its first reading, so that what needs less is launched before. One that is sent directly after a
run is sent as soon as it is made, so that the rest of the run is no reason to wait.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import takewhile

from ..compiler.schedule import Copy, Free, Instruction, Load, Release, Run, State, Wait, resting_place


def freed_inside(schedule: Sequence[Instruction], index: int) -> list[State]:
    """The values that a run lets go of at their last reading."""
    following = _following(schedule, index, (Free,))
    return [one.value for one in following if isinstance(one, Free) and is_part_of(one, schedule[index])]


def awaited_inside(schedule: Sequence[Instruction], index: int) -> list[State]:
    """The values that a run waits for at their first reading."""
    before = takewhile(lambda one: isinstance(one, (Wait, Load)), reversed(schedule[:index]))
    return [one.value for one in before if isinstance(one, Wait) and is_part_of(one, schedule[index])]


def sent_inside(schedule: Sequence[Instruction], index: int) -> list[Copy]:
    """The copies that a run starts when it has made what they send."""
    sent, gone = [], set()
    for one in _following(schedule, index, (Free, Release, Copy)):
        if isinstance(one, Free):
            gone.add((one.value, one.device))
        elif isinstance(one, Copy) and is_part_of(one, schedule[index]):
            sent += [one] if (State(one.value.node), one.source) not in gone else []
    return sent


def is_folded(schedule: Sequence[Instruction], index: int) -> bool:
    """Whether an instruction takes effect inside a run."""
    one = schedule[index]
    if isinstance(one, Wait):
        after = (other for other in schedule[index:] if not isinstance(other, (Wait, Load)))
        return is_part_of(one, next(after))
    between = (Free, Release, Copy) if isinstance(one, Copy) else (Free,)
    run = next((at for at in range(index, -1, -1) if not isinstance(schedule[at], between)), index)
    if isinstance(one, Copy):
        return any(one is other for other in sent_inside(schedule, run))
    return is_part_of(one, schedule[run])


def is_part_of(one: Instruction, run: Instruction) -> bool:
    """Whether an instruction beside a run is about what it reads, or about what it makes."""
    match run, one:
        case Run(segment, reads, _), Free(value, device):
            return value in reads and device == resting_place(value, segment.device)
        case Run(segment, reads, _), Wait(value, _, target, device):
            return value in reads and device == target == segment.device
        case Run(segment, _, yields), Copy(value, source):
            return State(value.node) in yields and source == segment.device
    return False


def _following(schedule: Sequence[Instruction], index: int, kinds: tuple[type[Instruction], ...]) -> list[Instruction]:
    return list(takewhile(lambda one: isinstance(one, kinds), schedule[index + 1 :]))
