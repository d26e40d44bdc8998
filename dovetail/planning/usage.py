"""What a program has on each device at its fullest moment, walked through once for all who ask."""

from __future__ import annotations

from collections.abc import Mapping, MutableMapping
from weakref import WeakKeyDictionary

from ..compiler.devices.device import Device
from ..compiler.ir.program import Program
from ..compiler.ir.schedule import Schedule
from ..passes.simulate.memory import Usage, simulate

_KNOWN: MutableMapping[Program, tuple[Schedule, Mapping[Device, Usage]]] = WeakKeyDictionary()


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
