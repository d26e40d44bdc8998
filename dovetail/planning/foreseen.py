"""What a dry run foresees, as the plan counts it: what programs have of weights, and what the pipeline itself holds."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from typing import Any

import torch
from torch import nn

from ..compiler.ir.program import Program
from ..compiler.ir.schedule import Lifetime, Load
from ..compiler.ir.split import pieces
from ..compiler.spec.devices import Device, Rig
from ..compiler.spec.residency import Residency
from ..components.calls import Call
from ..components.compiled import CompiledModule
from ..components.component import Component
from ..components.dry import DryRun
from .generation import Piece, PlannedCall
from .walk import Visit

Key = tuple[Call, Any]
"""A kind of call of a component."""


def pieces_of(component: Component, module: nn.Module, program: Program) -> Iterator[Piece]:
    """What a program of a component has on devices of weights, as its schedule loads it."""
    held = {weight.name: one for weight, one in component.assigned.held(module, program)}
    known = pieces(program)
    for load in (item for item in program.schedule or () if isinstance(item, Load)):
        for name in load.weights:
            weight = known[name][0] if name in known else program.weights[name]
            one = held.get(weight.whole)
            key: tuple[Any, ...] = (id(program), name) if one is None else (id(one), weight.rows, weight.quant)
            stays = load.lifetime is Lifetime.PROGRAM
            on_host = program.residency.get(weight.whole) is Residency.HOST
            rests = weight.nbytes if one is not None and not stays and on_host else 0
            yield Piece(
                (*key, load.device), component.name, load.device, weight.device_bytes, load.lifetime, rests, name
            )


def others_of(components: Mapping[str, Component]) -> Iterator[Piece]:
    """What stays on devices of weights that programs of earlier plans read, or that lies there already."""
    for name, component in components.items():
        for call in list(component.calls):
            for program in list(call.programs.values()):
                if isinstance(program, CompiledModule):
                    found = pieces_of(component, call.module, program.program)
                    yield from (piece for piece in found if piece.lasts is Lifetime.PROGRAM)
        for one in component.view.weights():
            if one.home is not None and not one.residency.stages_on(one.home) and component.parts.reasons:
                yield Piece((id(one), None, one.quant, one.home), name, one.home, one.nbytes, Lifetime.PROGRAM)


def held_in(run: DryRun, key: Key, rig: Rig) -> Counter[Device]:
    """The most bytes that the pipeline holds at a kind of call, what an earlier call has left among them, by device."""
    found: Counter[Device] = Counter()
    for one in run.moments:
        if one.key == key:
            found |= _by_device(Counter(one.held) + run.left(one), rig)
    return found


def visits_in(run: DryRun, planned: Mapping[Key, PlannedCall], rig: Rig) -> Iterator[Visit]:
    """The calls in the order in which the pipeline makes them, and its end."""
    for one in run.moments:
        left = run.left(one)
        call = planned.get(one.key) if one.key is not None else None
        yield Visit(call, _by_device(Counter(one.held) + left, rig), _by_device(Counter(one.since) + left, rig))


def _by_device(held: Mapping[torch.device, int], rig: Rig) -> Counter[Device]:
    by_torch = {device.torch: device for device in (*rig, rig.host)} if rig.present else {}
    found: Counter[Device] = Counter()
    for device, nbytes in held.items():
        found[by_torch.get(device, rig.host)] += nbytes
    return found
