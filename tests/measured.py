"""Measures what running a compiled module takes of simulated devices, from before its weights are there."""

from __future__ import annotations

import gc
from collections.abc import Callable
from typing import Any

import torch

from dovetail.compiler.devices.device import Device
from dovetail.compiler.ir.program import Program
from dovetail.components.compiled import CompiledModule
from dovetail.passes.analysis.memory_needs import needs_of
from dovetail.passes.infra.base import Pass
from dovetail.passes.placement.assignment import arranged
from dovetail.passes.simulate.memory import simulate
from dovetail.runtime import sim


def simulated(program: Program) -> list[Device]:
    """The simulated devices of a program."""
    return [device for device in program.devices if device.is_simulated]


def predicted(program: Program) -> dict[str, int]:
    """The peak of each simulated device, as the schedule says."""
    usage = simulate(program)
    return {device.name: usage[device].total for device in simulated(program)}


def measured(module: CompiledModule, args: tuple[Any, ...], kwargs: dict[str, Any], calls: int = 2) -> dict[str, int]:
    """The peak of each simulated device over loading and some calls; the module has no weights left afterwards."""
    devices = simulated(module.program)
    gc.collect()
    before = {device.name: sim.stats(device.index).in_use for device in devices}
    for device in devices:
        sim.reset_peak(device.index)
    with torch.no_grad():
        for _ in range(calls):
            module(*args, **kwargs)
    peaks = {device.name: sim.stats(device.index).peak - before[device.name] for device in devices}
    module.unload()
    gc.collect()
    left = {device.name: sim.stats(device.index).in_use for device in devices}
    assert left == before, "unloading leaves something"
    return peaks


def least(notes: dict[str, int]) -> Callable[[Pass, Program, object], None]:
    """A callback that notes the bytes that each simulated device needs at least, once weights have their places."""

    def note(step: Pass, program: Program, change: object) -> None:
        if step.name in ("place", "rows"):
            placed = arranged(program)
            needs = needs_of(placed, placed.places(), finest=True)
            notes.update({device.name: max(needs[device].total, 1) for device in simulated(program)})

    return note


def budget(least: dict[str, int], most: dict[str, int], part: float) -> str:
    """A budget between the least and the most that each device may need."""
    return ",".join(f"{name}={low + int(part * max(0, most[name] - low))}B" for name, low in least.items())
