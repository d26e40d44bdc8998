"""What a program takes of memory and time, for which its schedule is walked through once for all who ask."""

from __future__ import annotations

from collections.abc import Mapping, MutableMapping
from weakref import WeakKeyDictionary

from ..compiler.devices.device import Device
from ..compiler.devices.speeds import Speeds
from ..compiler.ir.program import Program
from ..compiler.ir.schedule import Schedule
from ..passes.simulate.memory import Usage, simulate
from ..passes.simulate.timeline import Timeline, timeline

_KNOWN: MutableMapping[Program, tuple[Schedule, Mapping[Device, Usage]]] = WeakKeyDictionary()

_LINES: MutableMapping[Program, tuple[Schedule, Speeds, Timeline]] = WeakKeyDictionary()


def usage_of(program: Program) -> Mapping[Device, Usage]:
    """The fullest moment of each device in the first call of a scheduled program, of the sizes that it was traced for.

    Raises ValueError for a program that has no schedule.
    """
    known = _KNOWN.get(program)
    if known is not None and known[0] is program.schedule:
        return known[1]
    found = simulate(program)
    if program.schedule is not None:
        _KNOWN[program] = program.schedule, found
    return found


def timeline_of(program: Program, speeds: Speeds) -> Timeline:
    """The time line of one call of a scheduled program at these very speeds; raises ValueError without a schedule."""
    known = _LINES.get(program)
    if known is not None and known[0] is program.schedule and known[1] is speeds:
        return known[2]
    found = timeline(program, speeds)
    if program.schedule is not None:
        _LINES[program] = program.schedule, speeds, found
    return found
