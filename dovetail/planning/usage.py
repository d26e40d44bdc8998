"""What a program takes of memory and time, for which its schedule is walked through once for all who ask."""

from __future__ import annotations

from collections.abc import Callable, Mapping, MutableMapping
from dataclasses import dataclass, field
from typing import Generic, TypeVar
from weakref import WeakKeyDictionary

from ..compiler.devices.device import Device
from ..compiler.devices.speeds import Speeds
from ..compiler.ir.program import Program
from ..passes.simulate.memory import Usage, simulate
from ..passes.simulate.timeline import Timeline, timeline

_T = TypeVar("_T")


@dataclass(frozen=True)
class _Walk(Generic[_T]):
    """What is found by a walk over the schedule of each program: the last, by the schedule and what is beside it."""

    find: Callable[..., _T]
    known: MutableMapping[Program, tuple[tuple[object, ...], _T]] = field(default_factory=WeakKeyDictionary)

    def __call__(self, program: Program, *beside: object) -> _T:
        of, known = (program.schedule, *beside), self.known.get(program)
        if known is not None and all(one is other for one, other in zip(known[0], of, strict=True)):
            return known[1]
        found = self.find(program, *beside)
        if program.schedule is not None:
            self.known[program] = of, found
        return found


_usage, _timeline = _Walk(simulate), _Walk(timeline)


def usage_of(program: Program) -> Mapping[Device, Usage]:
    """The fullest moment of each device in the first call of a scheduled program, of the sizes that it was traced for.

    Raises ValueError for a program that has no schedule.
    """
    return _usage(program)


def timeline_of(program: Program, speeds: Speeds) -> Timeline:
    """The time line of one call of a scheduled program at these very speeds; raises ValueError without a schedule."""
    return _timeline(program, speeds)
