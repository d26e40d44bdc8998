"""What a compiled pipeline has to do with its neighbours: those that it shares components with, or devices.

What is free of a device is asked again when a call is planned, and when weights were brought since it was asked last:
other pipelines, other processes and other tensors lie there too. What the pipeline holds there itself counts as free.
"""

from __future__ import annotations

import contextlib
import gc
import weakref
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from ..compiler.devices.device import Device
from ..compiler.devices.memory import Memory
from ..compiler.devices.rig import Rig
from ..compiler.units import format_bytes
from ..components.compiled import Brought
from ..components.component import Component, User
from ..components.decisions import Decisions
from ..components.plan import ComponentPlan
from ..conventions.request import Request
from ..planning.draft import Draft
from ..planning.planner import Planner
from ..recovery.recovery import Recovery
from ..runtime.devices.accelerator import accelerator_of
from ..runtime.store.origin import HOST
from ..runtime.store.stored_weight import StoredWeight
from .bounded import bounded, budgets_of, others_on
from .pipeline_state import ExecutionDevice, bring_state
from .sharing import OfAllFaces, lent

if TYPE_CHECKING:
    from diffusers import DiffusionPipeline

    from .pipeline import CompiledPipeline

_SLACK = 128
"""A device whose free memory changed by less than this part of all that it has is taken for unchanged."""
_NAMED = 3
"""So many of those who hold a device are named."""


_placed: weakref.WeakSet[Neighbour] = weakref.WeakSet()
"""The pipelines of this process that have placed components."""


class Neighbour:
    """A compiled pipeline beside others; see PlacedPipeline, which it is a part of.

    ``borrowed`` are the components that another pipeline placed, by their names here.
    """

    borrowed: dict[str, Component]
    hook: ExecutionDevice
    name: str
    _asked_rig: Rig
    _is_open: Any
    _planner: Planner
    _recovery: Recovery
    _request = OfAllFaces[Request]()
    _brought = OfAllFaces[int]()
    has_shared = OfAllFaces[bool]()
    """Whether other pipelines use some of these components, or did."""

    if TYPE_CHECKING:

        @property
        def faces(self) -> list[CompiledPipeline]:
            """What the pipelines over these components have at ``.dovetail``."""

        @property
        def pipe(self) -> DiffusionPipeline:
            """The pipeline."""

        @property
        def components(self) -> dict[str, Component]:
            """The components by name."""

        @property
        def main(self) -> Device:
            """The device of the pipeline's own tensors now."""

        @property
        def _roles(self) -> Mapping[str, str]: ...
        def _modules(self) -> dict[str, nn.Module]: ...
        def _tell_device(self) -> None: ...
        def now(self) -> Draft:
            """What holds, as a draft."""

        def _planned(self, request: Request, is_open: bool) -> dict[str, ComponentPlan]: ...
        def _enter(self, component: Component) -> None: ...

    def __init__(self) -> None:
        self.common: dict[str, Any] = {}

    def join(self) -> None:
        """Has other pipelines know of this one, which is whole now."""
        _placed.add(self)

    def measure(self, *, if_changed: bool = False) -> bool:
        """Asks again what is free of devices, always or if weights were brought meanwhile; says whether that is new."""
        brought, self._brought = self._brought, Brought.times
        if if_changed and brought == Brought.times:
            return False
        found = free_now(self._asked_rig, list(self.components.values()))
        if found.memory == self._request.rig.memory:
            return False
        self._request = replace(self._request, rig=found)
        plans = self._planned(self._request, self._is_open)
        for name, one in self._own().items():
            one.take_rig(plans[name].rig)
        return True

    def _bounded(self) -> contextlib.AbstractContextManager[None]:
        """Bounds what the process holds of this pipeline's devices meanwhile, by the budgets of all pipelines."""
        pipes = [pipe for pipe in list(_placed) if pipe.components]
        used = [(pipe._request, [one for part in pipe.components.values() for one in part.devices]) for pipe in pipes]
        sums = {device: nbytes for device, nbytes in budgets_of(used).items() if device in self._request.rig}
        if not sums:
            return contextlib.nullcontext()
        held: Counter[torch.device] = Counter()
        with contextlib.suppress(RuntimeError):  # threads of others go on: then the bound is higher
            held = held_by([one for pipe in pipes for one in pipe._own().values()])
        return bounded({device: nbytes + others_on(device, held) for device, nbytes in sums.items()})

    def _stay_again(self) -> None:
        """Has components that ran out of memory in an earlier call be where they were, if there is room again."""
        for component in self.components.values():
            if component.streams and has_room(component, self._planner.values_of(component)):
                component.stay()
                self._planner.forget()

    def as_user(self, name: str) -> User:
        """What a component asks and tells of this pipeline, and what it is called here."""
        return User(name, self._offer, self._enter, self._recovery)

    def _offer(self, decided: Decisions, read: Sequence[StoredWeight]) -> Rig:
        """What is left for a component of its devices, as all is placed now."""
        return self.now().offer(decided, read)

    @contextlib.contextmanager
    def using_borrowed(self) -> Iterator[None]:
        """Has the components that others placed serve this pipeline meanwhile."""
        for owner in {one.owner for one in self.borrowed.values()}:
            owner.close()
        self.has_shared |= any(one.borrowers for one in self.components.values())
        with lent(self.borrowed, self), self._scheduler_shared() if self.has_shared else contextlib.nullcontext():
            yield

    @contextlib.contextmanager
    def _scheduler_shared(self) -> Iterator[None]:
        """Has the tensors of a scheduler, which other pipelines may use too, lie here meanwhile, and then nowhere."""
        bring_state(self.pipe, self.main.torch)
        try:
            yield
        finally:
            bring_state(self.pipe, HOST)

    def inherits(self, component: Component) -> bool:
        """Takes over a component that is left by the pipeline that placed it, if this one borrows it."""
        name = next((name for name, one in self.borrowed.items() if one is component), None)
        if name is None:
            return False
        del self.borrowed[name]
        component.borrowers.discard(self)
        component.owner, self.has_shared = self, True
        component.serve(self.as_user(name))
        self._tell_device()
        return True

    def _own(self) -> dict[str, Component]:
        """The components that this pipeline has placed itself."""
        return {name: one for name, one in self.components.items() if name not in self.borrowed}


def free_now(asked: Rig, components: Sequence[Component]) -> Rig:
    """A rig with no more free memory than its devices have now, where it is of this machine.

    Where that is less than was asked for, what nobody holds any more is collected first: it may be a pipeline's.
    """
    if not asked.present:
        return asked
    own = held_by(components)
    found = _lessened(asked, own)
    if found.memory != asked.memory and gc.collect():
        found = _lessened(asked, own)
    return replace(found, memory={one: _told(one, memory, asked, components) for one, memory in found.memory.items()})


def _lessened(asked: Rig, own: Mapping[torch.device, int]) -> Rig:
    return replace(asked, memory={device: _less(device, memory, own) for device, memory in asked.memory.items()})


def _less(device: Device, memory: Memory, own: Mapping[torch.device, int]) -> Memory:
    if device.is_host or not device.is_of_here:
        return memory
    room = accelerator_of(device.torch).room()
    if room is None or room + own.get(device.torch, 0) >= memory.free - memory.total // _SLACK:
        return memory
    return replace(memory, free=room + own.get(device.torch, 0))


def _told(device: Device, memory: Memory, asked: Rig, own: Sequence[Component]) -> Memory:
    """The memory of a device, with who holds what was asked for and is not free."""
    lacking = asked.memory[device].free - memory.free
    if lacking <= 0:
        return memory
    others = _others_on(device, own)
    who = [f"{name} {format_bytes(nbytes)}" for name, nbytes in others.most_common(_NAMED)]
    who += ["other programs, or tensors of this one"] if lacking - others.total() > memory.total // _SLACK else []
    why = f"{format_bytes(lacking)} are held by {', and '.join(who) or 'others'}"
    return replace(memory, why=", ".join(filter(None, (memory.why, why))))


def _others_on(device: Device, own: Sequence[Component]) -> Counter[str]:
    """The bytes that components of other pipelines hold on a device, by their names and pipelines."""
    found: Counter[str] = Counter()
    for pipe in list(_placed):
        with contextlib.suppress(RuntimeError):  # their threads go on: it is for a message
            there = [(name, one) for name, one in pipe._own().items() if one not in own]
            found.update({f"{name} of a {pipe.name}": held_by([one])[device.torch] for name, one in there})
    return +found


def held_by(components: Iterable[Component]) -> Counter[torch.device]:
    """The bytes that components hold on each device, each piece of memory counted once."""
    found: dict[tuple[torch.device, int], int] = {}
    for component in components:
        held = [tensor for program in component.programs for tensor in program.held()]
        for one in component.view.weights():
            held += [*([one.tensor] if one.is_here else ()), *one.parts.values(), *one.staged.values()]
        for tensor in held:
            if accelerator_of(tensor.device).has_streams:
                start = tensor.data_ptr() - int(tensor.storage_offset()) * tensor.itemsize
                found[tensor.device, start] = tensor.untyped_storage().nbytes()
    count: Counter[torch.device] = Counter()
    for (device, _), nbytes in found.items():
        count[device] += nbytes
    return count


def has_room(component: Component, values: Mapping[Device, int]) -> bool:
    """Whether the weights of a component that streams would have room where they were to stay, beside its values."""
    need = Counter(values)
    for device, nbytes in component.comes_back().items():
        need[device] += nbytes
    rooms = {device: accelerator_of(device.torch).room() for device in need if not device.is_host}
    return all(room is None or room >= need[device] for device, room in rooms.items())
