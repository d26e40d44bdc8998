"""What a dry run foresees, as the plan counts it: what programs have of weights, and what the pipeline itself holds."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import nn

from ..compiler.devices.device import Device
from ..compiler.devices.rig import Rig
from ..compiler.ir.program import Program, tensors_of
from ..compiler.ir.schedule import Lifetime, Load
from ..compiler.spec.residency import Residency
from ..compiler.states.parts import pieces
from ..components.calls import Call
from ..components.compiled import CompiledModule
from ..components.decisions import Decisions
from ..components.dry import DryRun, Going, Moment
from ..runtime.store.stored_weight import StoredWeight
from .generation import Piece, PlannedCall
from .walk import Visit

Key = tuple[Call, Any]
"""A kind of call of a component."""

Planned = Mapping[Key, Sequence[PlannedCall]]
"""The programs of each kind of call, one for each device where calls take turns."""


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
                for lowered in program.lowered if isinstance(program, CompiledModule) else ():
                    found = pieces_of(decided, call.module, lowered)
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


def copied_in(compiled: CompiledModule, program: Program) -> Counter[Device]:
    """The bytes that a call of a program has of copies of its inputs while it goes on, where calls take turns."""
    if len(compiled.lowered) < 2:
        return Counter()
    return Counter({program.main: sum(one.nbytes for node in program.inputs() for one in tensors_of(node))})


def times_in(run: DryRun, key: Key, devices: int) -> list[int]:
    """How often a kind of call is made on each of so many devices that take turns with it."""
    counts = Counter(one.turn % devices for one in run.moments if one.key == key)
    return [counts[device] for device in range(devices)]


def turns_in(run: DryRun, planned: Planned) -> Iterator[list[PlannedCall]]:
    """The calls that go on at the same time, a list for each time that calls are waited for together."""
    found: list[PlannedCall] = []
    for one in run.moments:
        if found and not one.going:
            yield found
            found = []
        each = planned.get(one.key, []) if one.key is not None else []
        found += [each[one.turn % len(each)]] if len(each) > 1 else []
    yield from [found] if found else []


def visits_in(run: DryRun, planned: Planned, rig: Rig, main: Device) -> Iterator[Visit]:
    """The calls in the order in which the pipeline makes them, and its end.

    ``main`` is the device of the pipeline's own tensors when it is called, wherever the dry run had them.
    """
    came: Counter[Device] = Counter()
    before: Counter[Device] = Counter()
    left: Counter[torch.device] | None = None
    for one in run.moments:
        earlier, left = left, run.left(one)
        earlier = _most(left, earlier) if earlier is not None else left  # what is replaced on the way was there
        each = planned.get(one.key, []) if one.key is not None else []
        call = each[one.turn % len(each)] if each else None
        held, since, after, unread = (
            _by_device(Counter(some) + there, run, rig, main)
            for some, there in ((one.held, left), (one.since, earlier), (one.after, left), (one.unread, earlier))
        )
        beside = _going_on(one.going, run, planned, rig, main)
        most = _sum(since | unread, before) if one.going or not one.unread else since | _sum(unread, before)
        at_call = _sum(held, beside, call.copied if call is not None else {})
        yield Visit(call, at_call, most | came, one.changed)
        now = Going(one.key, one.turn, {}) if one.key is not None and len(each) > 1 else None
        before = _going_after(one, now, run, planned, rig, main)
        own = call.program.main if call is not None else None  # of which its program counts the results
        came = Counter({device: nbytes for device, nbytes in after.items() if call is not None and device != own})


def _going_after(
    one: Moment, now: Going | None, run: DryRun, planned: Planned, rig: Rig, main: Device
) -> Counter[Device]:
    """What calls take that go on from a moment on, that of the moment among them."""
    if now is None:
        return _going_on(one.going, run, planned, rig, main)
    results = Counter(one.after)
    results.subtract(one.held)
    return _going_on((*one.going, replace(now, results=+results)), run, planned, rig, main)


def _going_on(going: Sequence[Going], run: DryRun, planned: Planned, rig: Rig, main: Device) -> Counter[Device]:
    """The bytes that calls which go on take beside what the pipeline holds, to which their results are counted.

    Those on one device follow each other; all have copies of their inputs, and results that wait.
    """
    device_of, found = places(run, rig, main), Counter[Device]()
    most: Counter[Device] = Counter()
    for one in going:
        each = planned.get(one.key, [])
        if len(each) < 2:
            continue
        call = each[one.turn % len(each)]
        here = call.program.main
        held = sum(nbytes for device, nbytes in one.results.items() if device_of(device) == here)
        found += call.copied
        most |= Counter({here: call.values.get(here, 0) - held})
    return found + most


def _most(one: Counter[torch.device], other: Counter[torch.device]) -> Counter[torch.device]:
    """The larger of two numbers of bytes, which may be less than nothing, by device."""
    return Counter({device: max(one[device], other[device]) for device in {*one, *other}})


def _sum(*some: Mapping[Device, int]) -> Counter[Device]:
    return sum(map(Counter, some), Counter[Device]())


def called_in(run: DryRun) -> list[str]:
    """The component of each call of a dry run, in their order."""
    return [run.calls[one.key].component.name for one in run.moments if one.key in run.calls]


def given_in(run: DryRun, key: Key, there: Device, rig: Rig, main: Device) -> frozenset[int]:
    """The numbers of the inputs of a kind of call that lie on a device already, so that none is brought there.

    ``main`` is as for `visits_in`.
    """
    device_of = places(run, rig, main)
    lay = enumerate(run.inputs.get(key, ()))
    return frozenset(number for number, device in lay if device is not None and device_of(device) == there)


def _by_device(held: Mapping[torch.device, int], run: DryRun, rig: Rig, main: Device) -> Counter[Device]:
    device_of = places(run, rig, main)
    found: Counter[Device] = Counter()
    for device, nbytes in held.items():
        found[device_of(device)] += nbytes
    return found


def places(run: DryRun, rig: Rig, main: Device) -> Callable[[torch.device], Device]:
    """Gives the device on which that is in a call which was on a device in the dry run."""
    by_torch = {device.torch: device for device in (*rig, rig.host)} if rig.present else {}

    def device_of(device: torch.device) -> Device:
        return main if device == run.main else by_torch.get(device, rig.host)

    return device_of
