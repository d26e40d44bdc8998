"""How full each device is over the time of one call, and its time line; nothing is computed.

It walks the memory and the clocks through a schedule side by side: what is on a device at a moment is what its own
queue has reached then. The fullest moment is that of `memory.simulate`, the time line that of `timeline.timeline`.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass

from ...compiler.devices.device import Device
from ...compiler.devices.speeds import Speeds
from ...compiler.ir.program import Program
from ...compiler.ir.schedule import Instruction, Run
from .memory import MemoryWalk, Usage
from .timeline import ClockWalk, Timeline

Moments = list[tuple[float, Usage]]
"""Seconds since the call began, with what is on a device from then on; seconds never decrease."""


@dataclass(frozen=True)
class Profile:
    """The moments of each device, and the time line."""

    moments: Mapping[Device, Moments]
    timeline: Timeline


def profile(program: Program, speeds: Speeds, there: Mapping[Device, Collection[str]] | None = None) -> Profile:
    """The profile of one call of a scheduled program; ``there`` names weights that are on devices before it.

    Raises ValueError for a program that has no schedule.
    """
    if program.schedule is None:
        raise ValueError(f"{program.name} has no schedule yet: lower it first")
    walk = _Both(program, speeds)
    for device, names in (there or {}).items():
        walk.memory.bring(device, names)
    for one in program.schedule:
        walk.carry_out(one)
    return Profile(walk.moments, walk.clock.ended())


class _Both:
    """The memory and the clocks, and what was seen of memory by the clocks."""

    def __init__(self, program: Program, speeds: Speeds) -> None:
        self.memory, self.clock = MemoryWalk(program), ClockWalk(program, speeds)
        self.moments: dict[Device, Moments] = {device: [] for device in self.memory.on}
        for device, memory in self.memory.on.items():
            memory.watch = self._watch(device)

    def _watch(self, device: Device) -> Callable[[Usage], None]:
        return lambda usage: self.moments[device].append((self.clock.computed[device], usage))

    def carry_out(self, one: Instruction) -> None:
        """What an instruction does to both; memory is as it is at the start of an operation until that ends."""
        if not isinstance(one, Run):
            self.memory.carry_out(one)
            self.clock.carry_out(one)
            return
        self.clock.carry_out(one)
        for step in one.steps:
            for awaited in step.awaits:
                self.clock.carry_out(awaited)
            self.memory.step(step, one.device)
            self.clock.carry_out(step)
            self.memory.on[one.device].note()
            for send in step.sends:
                self.clock.carry_out(send)
