"""Where the values of one call lie between its instructions: a slot of a list each.

A value that outlives the run that makes it has a slot on each device that it lies on. So has each load of weights that
come for a call, for what the load has started, and each copy that its source waits for, for the event.
"""

from __future__ import annotations

from collections import ChainMap, defaultdict
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from itertools import count

from ..compiler.devices.device import Device
from ..compiler.ir.program import device_of, tensors_of
from ..compiler.ir.schedule import Allocate, Await, Copy, Input, Lifetime, Load, Run, Schedule, ValueRef


@dataclass(frozen=True)
class RunSlots:
    """The slots that a run on one device can name.

    ``values`` are the tensors there and the Python numbers of all devices.
    """

    values: Mapping[ValueRef, int]
    everywhere: Slots

    def ends_of(self, copy: Copy) -> tuple[int, int | None]:
        """The slot of what arrives, and of the event that its source awaits."""
        slots = self.everywhere
        arrival = slots.values[copy.value, copy.target] if not copy.landings else slots.landed[copy]
        return arrival, slots.fences.get(copy)


@dataclass(frozen=True)
class Slots:
    """All slots of a schedule; the inputs have the first ones, in order."""

    values: Mapping[tuple[ValueRef, Device], int]
    loads: Mapping[Load, int]
    fences: Mapping[Copy, int]
    landed: Mapping[Copy, int]  # what has arrived in a whole

    @staticmethod
    def of(schedule: Schedule) -> Slots:
        """One pass over the instructions."""
        values: dict[tuple[ValueRef, Device], None] = {}
        loads: dict[Load, None] = {}
        fences: dict[Copy, None] = {}
        landed: dict[Copy, None] = {}
        for one in schedule.flat():
            match one:
                case Input(states, device):
                    values.update(dict.fromkeys((state, device) for state in states))
                case Allocate(value, device):
                    values[value, device] = None
                case Copy(value, _, target, ()):
                    values[value, target] = None
                case Copy(_, source, target) if source != target:
                    landed[one] = None
                case Load() if one.lifetime is not Lifetime.PROGRAM:
                    loads[one] = None
                case Await(Copy() as copy, device) if device != copy.target:
                    fences[copy] = None
                case Run():
                    values.update(dict.fromkeys(_outliving(one)))
        numbers = count()
        return Slots(*({key: next(numbers) for key in keys} for keys in (values, loads, fences, landed)))  # type: ignore[arg-type]

    @property
    def size(self) -> int:
        """How many slots there are."""
        return len(self.values) + len(self.loads) + len(self.fences) + len(self.landed)

    def on(self, device: Device) -> RunSlots:
        """The slots that work on a device can name."""
        return RunSlots(ChainMap(self._tensors_on[device], self._numbers), self)

    @cached_property
    def _tensors_on(self) -> Mapping[Device, dict[ValueRef, int]]:
        found: dict[Device, dict[ValueRef, int]] = defaultdict(dict)
        for (state, device), slot in self.values.items():
            if tensors_of(state.node):
                found[device][state] = slot
        return found

    @cached_property
    def _numbers(self) -> dict[ValueRef, int]:
        return {
            state: slot
            for (state, device), slot in self.values.items()
            if not tensors_of(state.node) and device == device_of(state.node)
        }


def _outliving(run: Run) -> list[tuple[ValueRef, Device]]:
    """The values that a run makes and does not free."""
    freed = {free.value for step in run.steps for free in step.frees}
    made = map(ValueRef, run.nodes)
    return [(value, run.device) for value in made if value not in freed]
