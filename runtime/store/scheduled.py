"""What the schedule of a program says of its weights: which device reads each, and what stays there how long."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator

import torch

from ...compiler.devices.device import Device
from ...compiler.ir.part import Part
from ...compiler.ir.program import Program
from ...compiler.ir.schedule import Lifetime, Load
from ...compiler.states.parts import pieces


def readers(program: Program) -> dict[str, list[Device]]:
    """The devices that read each weight, by name."""
    found: dict[str, list[Device]] = defaultdict(list)
    for item in program.schedule or ():
        if isinstance(item, Load):
            for name in item.weights:
                found[name].append(item.device)
    return found


def staying(program: Program) -> frozenset[tuple[str, torch.device]]:
    """The weights that the schedule keeps for the program on devices of this process, with the device of each."""
    loads = _loads(program, Lifetime.PROGRAM)
    return frozenset((name, load.device.torch) for load in loads for name in load.weights)


def kept(program: Program) -> dict[str, set[tuple[Part | None, torch.device]]]:
    """The parts that the schedule keeps here for a phase of each weight, by the name of the whole, with the device."""
    known = pieces(program)
    found: dict[str, set[tuple[Part | None, torch.device]]] = defaultdict(set)
    for load in _loads(program, Lifetime.PHASE):
        for weight in (known[name][0] for name in load.weights):
            found[weight.whole].add((weight.which, load.device.torch))
    return found


def coming(program: Program) -> dict[torch.device, list[str]]:
    """The weights that come to each accelerator of this process for a call or a phase, by the names of the wholes."""
    known = pieces(program)
    found: dict[torch.device, dict[str, None]] = defaultdict(dict)
    for lifetime in set(Lifetime) - {Lifetime.PROGRAM}:
        for load in _loads(program, lifetime):
            if not load.device.is_host:
                found[load.device.torch] |= dict.fromkeys(known[name][0].whole for name in load.weights)
    return {device: list(names) for device, names in found.items()}


def _loads(program: Program, lifetime: Lifetime) -> Iterator[Load]:
    """The loads to devices of this process that last so long."""
    for one in program.schedule or ():
        if isinstance(one, Load) and one.lifetime is lifetime and one.device.is_of_here:
            yield one
