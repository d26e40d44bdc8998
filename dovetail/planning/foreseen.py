"""What a dry run foresees, as the plan counts it: what programs have of weights, and what the pipeline itself holds."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

import torch
from torch import nn

from ..compiler.devices.device import Device
from ..compiler.devices.rig import Rig
from ..compiler.ir.program import Program
from ..compiler.ir.schedule import Lifetime, Load
from ..compiler.spec.residency import Residency
from ..compiler.states.parts import pieces
from ..components.calls import Call
from ..components.compiled import CompiledModule
from ..components.decisions import Decisions
from ..components.dry import DryRun
from ..runtime.store.stored_weight import StoredWeight
from .generation import Piece, PlannedCall
from .walk import Visit

Key = tuple[Call, Any]
"""A kind of call of a component."""


def pieces_of(decided: Decisions, module: nn.Module, program: Program) -> Iterator[Piece]:
    """What a program of a component has on devices of weights, as its schedule loads it."""
    held, name_of = {one.name: stored for one, stored in decided.assigned.held(module, program)}, decided.component.name
    known = pieces(program)
    for load in (item for item in program.schedule or () if isinstance(item, Load)):
        for name in load.weights:
            weight = known[name][0] if name in known else program.weights[name]
            one = held.get(weight.whole)
            key: tuple[Any, ...] = (id(program), name) if one is None else (id(one), weight.which, weight.quant)
            stays = load.lifetime is Lifetime.PROGRAM
            on_host = program.residency.get(weight.whole) is Residency.HOST
            rests = weight.nbytes if one is not None and not stays and on_host else 0
            yield Piece(
                (*key, load.device), name_of, load.device, weight.device_bytes, load.lifetime, rests, name,
                of=(id(one), weight.quant), whole=program.weights[weight.whole].nbytes,
            )  # fmt: skip


def others_of(everyone: Iterable[Decisions]) -> Iterator[Piece]:
    """What stays on devices of weights that programs of earlier plans read, or that lies there already."""
    for decided in everyone:
        component = decided.component
        for call in component.calls if not decided.is_anew else ():
            for program in list(call.programs.values()):
                if isinstance(program, CompiledModule):
                    found = pieces_of(decided, call.module, program.program)
                    yield from (piece for piece in found if piece.lasts is Lifetime.PROGRAM)
        for one in component.view.weights() if component.parts.reasons else ():
            home = decided.assigned.place(one).home
            if home is not None:  # whether a part of it is called may depend on numbers
                yield _piece_of(decided, one, home)
        yield from _copies_of(decided)
        if decided.plan.is_together:
            yield from _kept_of(decided)


def _kept_of(decided: Decisions) -> Iterator[Piece]:
    """The small weights that stay whole on a device whatever programs read of them, which may be parts."""
    for one in decided.component.view.kept:
        home = decided.assigned.place(one).home
        if home in decided.devices:
            key = id(one), None, one.quant, home
            yield Piece(key, decided.component.name, home, one.nbytes, Lifetime.PROGRAM, 0)


def _copies_of(decided: Decisions) -> Iterator[Piece]:
    """The weights that modules read themselves on another device than their home, or that are packed there."""
    devices = {device.name: device for device in decided.devices}
    for one, name in decided.assigned.copies():
        if name in devices:
            key = id(one), "read", devices[name]
            yield Piece(key, decided.component.name, devices[name], one.nbytes, Lifetime.PROGRAM, 0)


def _piece_of(decided: Decisions, one: StoredWeight, home: Device) -> Piece:
    """A weight of a component that runs by its parts; what its own Python reads stays until its phase ends."""
    residency = decided.assigned.place(one).residency
    stages = residency.stages_on(home)
    rests = one.nbytes if stages and residency is Residency.HOST else 0
    lasts = Lifetime.STAGE if stages and one not in decided.sites.read_as_is else Lifetime.PROGRAM
    return Piece(
        (id(one), None, one.quant, home), decided.component.name, home, one.nbytes, lasts, rests,
        of=(id(one), one.quant), whole=one.nbytes,
    )  # fmt: skip


def held_in(run: DryRun, key: Key, rig: Rig, main: Device) -> Counter[Device]:
    """The most bytes that the pipeline holds at a kind of call, what an earlier call has left among them, by device.

    ``main`` is as for `visits_in`.
    """
    found: Counter[Device] = Counter()
    for one in run.moments:
        if one.key == key:
            found |= _by_device(Counter(one.held) + run.left(one), run, rig, main)
    return found


def visits_in(run: DryRun, planned: Mapping[Key, PlannedCall], rig: Rig, main: Device) -> Iterator[Visit]:
    """The calls in the order in which the pipeline makes them, and its end.

    ``main`` is the device of the pipeline's own tensors when it is called, wherever the dry run had them.
    """
    came: Counter[Device] = Counter()
    for one in run.moments:
        left = run.left(one)
        call = planned.get(one.key) if one.key is not None else None
        held, since, after = (
            _by_device(Counter(some) + left, run, rig, main) for some in (one.held, one.since, one.after)
        )
        yield Visit(call, held, since | came)
        own = call.program.main if call is not None else None  # of which its program counts the results
        came = Counter({device: nbytes for device, nbytes in after.items() if call is not None and device != own})


def called_in(run: DryRun) -> list[str]:
    """The component of each call of a dry run, in their order."""
    return [run.calls[one.key].component.name for one in run.moments if one.key in run.calls]


def given_in(run: DryRun, key: Key, there: Device, rig: Rig, main: Device) -> frozenset[int]:
    """The numbers of the inputs of a kind of call that lie on a device already, so that none is brought there.

    ``main`` is as for `visits_in`.
    """
    device_of = _places(run, rig, main)
    lay = enumerate(run.inputs.get(key, ()))
    return frozenset(number for number, device in lay if device is not None and device_of(device) == there)


def _by_device(held: Mapping[torch.device, int], run: DryRun, rig: Rig, main: Device) -> Counter[Device]:
    device_of = _places(run, rig, main)
    found: Counter[Device] = Counter()
    for device, nbytes in held.items():
        found[device_of(device)] += nbytes
    return found


def _places(run: DryRun, rig: Rig, main: Device) -> Callable[[torch.device], Device]:
    """Gives the device on which that is in a call which was on a device in the dry run."""
    by_torch = {device.torch: device for device in (*rig, rig.host)} if rig.present else {}

    def device_of(device: torch.device) -> Device:
        return main if device == run.main else by_torch.get(device, rig.host)

    return device_of
