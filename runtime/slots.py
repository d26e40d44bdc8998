"""Where the values of one call lie between its instructions: a slot of a list each.

A value that outlives the run that makes it has a slot on each device that it lies on. So has each load of weights that
come for a call, for what the load has started, and each copy that its source waits for, for the event.
"""

from __future__ import annotations

from collections import ChainMap, defaultdict
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property

from torch.fx import Node

from ..compiler.ir.program import Program, device_of, tensors_of
from ..compiler.ir.schedule import Await, Copy, Input, Lifetime, Load, Run, Schedule, State
from ..compiler.spec.devices import Device


@dataclass(frozen=True)
class RunSlots:
    """The slots that a run on one device can name.

    ``values`` are the tensors there and the Python numbers of all devices, ``nodes`` the placeholders of weights by
    name.
    """

    values: Mapping[State, int]
    targets: Mapping[tuple[State, Device], int]
    loads: Mapping[Load, int]
    fences: Mapping[Copy, int]
    nodes: Mapping[str, Node]

    def ends_of(self, copy: Copy) -> tuple[int, int, int | None]:
        """The slot of a copy's value on its target, of the whole it lands in, and of the event its source awaits."""
        whole = -1 if copy.into is None else self.targets[copy.into.value, copy.target]
        return self.targets[copy.value, copy.target], whole, self.fences.get(copy)


@dataclass(frozen=True)
class Slots:
    """All slots of a schedule; the inputs have the first ones, in order."""

    values: Mapping[tuple[State, Device], int]
    loads: Mapping[Load, int]
    fences: Mapping[Copy, int]
    nodes: Mapping[str, Node]

    @staticmethod
    def of(program: Program, schedule: Schedule) -> Slots:
        """One pass over the instructions."""
        values: dict[tuple[State, Device], None] = {}
        loads: dict[Load, None] = {}
        fences: dict[Copy, None] = {}
        for one in schedule.flat():
            match one:
                case Input(states, device):
                    values.update(dict.fromkeys((state, device) for state in states))
                case Copy(value, _, target):
                    values[value, target] = None
                case Load() if one.lifetime is not Lifetime.PROGRAM:
                    loads[one] = None
                case Await(Copy() as copy, device) if device != copy.target:
                    fences[copy] = None
                case Run():
                    values.update(dict.fromkeys(_outliving(one)))
        return Slots(
            {key: slot for slot, key in enumerate(values)},
            {load: slot for slot, load in enumerate(loads, len(values))},
            {copy: slot for slot, copy in enumerate(fences, len(values) + len(loads))},
            {node.meta["weight"]: node for node in program.weight_nodes()},
        )

    @property
    def size(self) -> int:
        """How many slots there are."""
        return len(self.values) + len(self.loads) + len(self.fences)

    def on(self, device: Device) -> RunSlots:
        """The slots that work on a device can name."""
        seen = ChainMap(self._tensors_on[device], self._numbers)
        return RunSlots(seen, self.values, self.loads, self.fences, self.nodes)

    @cached_property
    def _tensors_on(self) -> Mapping[Device, dict[State, int]]:
        found: dict[Device, dict[State, int]] = defaultdict(dict)
        for (state, device), slot in self.values.items():
            if tensors_of(state.node):
                found[device][state] = slot
        return found

    @cached_property
    def _numbers(self) -> dict[State, int]:
        return {
            state: slot
            for (state, device), slot in self.values.items()
            if not tensors_of(state.node) and device == device_of(state.node)
        }


def _outliving(run: Run) -> list[tuple[State, Device]]:
    """The values that a run makes and does not free."""
    freed = {free.value for step in run.steps for free in step.frees}
    return [(State(node), run.device) for node in run.nodes if State(node) not in freed]
