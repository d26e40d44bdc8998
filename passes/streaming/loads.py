"""The loads of a schedule: what stays, what comes for each stage, and when each load is started."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import count

from torch.fx import Node

from ...compiler.devices.device import Device
from ...compiler.ir.program import Program, Segment
from ...compiler.ir.schedule import Lifetime, Load
from ...compiler.ir.weight import Weight
from ...compiler.spec.residency import Residency
from ...compiler.states.parts import pieces
from .spread import Streaming, stream


@dataclass(frozen=True, eq=False)
class Stage:
    """Nodes of a segment on one device whose weights come and go together, and the weights that come for it.

    ``weights`` has by each name the site of its first reader.
    """

    segment: Segment
    device: Device
    nodes: tuple[Node, ...]
    weights: dict[str, Hashable] = field(default_factory=dict)


Pieces = Mapping[str, tuple[Weight, Device]]
"""What devices hold of the weights of a program, by name, as `pieces` has it."""

Resident = Mapping[Device, Mapping[str, None]]
"""The names of the weights that stay on each device."""


def decide(
    program: Program, stages: Sequence[Stage], resident: Resident, values: Mapping[Device, int]
) -> dict[Device, Streaming]:
    """What is kept for a phase on each device, and how many slots it has, where values take so many bytes there."""
    known = pieces(program)
    rooms = rooms_of(program, known, resident, values)
    found: dict[Device, Streaming] = {}
    for device, coming in coming_of(known, stages).items():
        found[device] = stream(coming, rooms[device], program.keeps_staged, on_disk(program, coming))
    return found


def rooms_of(program: Program, known: Pieces, resident: Resident, values: Mapping[Device, int]) -> dict[Device, int]:
    """The bytes that each device has for weights that come and go, beside those that stay and values of so many."""
    stay = {device: sum(known[name][0].device_bytes for name in names) for device, names in resident.items()}
    return {device: free - stay[device] - values[device] for device, free in program.rig.free.items()}


def coming_of(known: Pieces, stages: Sequence[Stage]) -> dict[Device, list[dict[str, Weight]]]:
    """The weights that come for each stage of each device, by name."""
    found: dict[Device, list[dict[str, Weight]]] = defaultdict(list)
    for stage in stages:
        if stage.weights:
            found[stage.device].append({name: known[name][0] for name in stage.weights})
    return found


def on_disk(program: Program, stages: Sequence[Mapping[str, Weight]]) -> frozenset[str]:
    """The names of the weights of some stages that come from disk, where others come from the host's memory."""
    names = {
        name
        for stage in stages
        for name, weight in stage.items()
        if program.residency.get(weight.whole) is Residency.DISK
    }
    return frozenset(names)


class Loads:
    """All loads: ``resident`` stay for the program, ``of`` has those of each stage.

    ``ahead`` says which loads into slots are started after each stage, the one that had the slot before, and which at
    the beginning (None).
    """

    def __init__(self, stages: Sequence[Stage], resident: Resident, streaming: Mapping[Device, Streaming]) -> None:
        self._streaming = streaming
        numbers = count()
        held = [(device, names) for device, names in resident.items() if names]
        self.resident = [Load(next(numbers), tuple(names), device) for device, names in held]
        self.of = {stage: self._of(stage, numbers) for stage in stages if stage.weights}
        self.ahead: dict[Stage | None, list[Load]] = defaultdict(list)
        self._place_ahead()

    def _of(self, stage: Stage, numbers: Iterator[int]) -> list[Load]:
        """What is kept of a stage's weights, and what comes through a slot that is chosen later."""
        streaming = self._streaming.get(stage.device, Streaming())
        kept = tuple(name for name in stage.weights if name in streaming.kept)
        rest = tuple(name for name in stage.weights if name not in streaming.kept)
        loads = [Load(next(numbers), kept, stage.device, Lifetime.PHASE)] if kept else []
        return loads + ([Load(next(numbers), rest, stage.device, Lifetime.STAGE, 0)] if rest else [])

    def _place_ahead(self) -> None:
        """Slots are taken in turn by what comes and goes; those behind them are filled once, each for a load."""
        earlier: dict[Device, list[Stage]] = defaultdict(list)
        for stage, loads in self.of.items():
            for index, load in enumerate(loads):
                if load.lifetime is Lifetime.STAGE:
                    slots, before = self._slots_of(stage.device), earlier[stage.device]
                    loads[index] = replace(load, slot=len(before) % slots)
                    self.ahead[before[-slots] if len(before) >= slots else None].append(loads[index])
                    before.append(stage)
        last = {device: count(min(self._slots_of(device), len(some))) for device, some in earlier.items()}
        for loads in self.of.values():
            loads[:] = [replace(one, slot=next(last.setdefault(one.device, count()))) if one.lifetime is Lifetime.PHASE
                        else one for one in loads]  # fmt: skip

    def _slots_of(self, device: Device) -> int:
        """How many slots a device has for what comes and goes."""
        return self._streaming.get(device, Streaming()).slots
