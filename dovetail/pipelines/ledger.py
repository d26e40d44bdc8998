"""What the components of a pipeline reserve of each device, and so what is left there for one of them."""

from __future__ import annotations

import functools
import operator
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Protocol

from ..compiler.devices.device import Device
from ..compiler.devices.memory import Memory
from ..compiler.devices.rig import Rig
from ..compiler.errors import DoesNotFitError
from ..compiler.spec.residency import Residency
from ..compiler.units import format_bytes
from ..components.component import Component
from ..planning.planner import Planner
from ..runtime.store.stored_weight import StoredWeight

_Held = tuple[Counter[str], Counter[str]]
"""The bytes that stay on each device, and those that come there for a phase."""


class Ledger:
    """The one account of device memory of a pipeline; devices are counted by name.

    A component on one device reserves all its weights there from the beginning. One on several reserves what was placed
    so far, as does one of which a plan says what is read. Staged weights are reserved for a phase, and only those of
    one phase are on a device at a time, with the values of that phase, which the planner knows.
    """

    def __init__(self, components: Mapping[str, Component], planner: Planner, phase_of: Callable[[str], str]) -> None:
        self._components = components
        self._phase_of = phase_of
        self._planner = planner

    def offer(self, component: Component, read: Sequence[StoredWeight] = ()) -> Rig:
        """The devices of a component with what is left of their budgets by others, and by its weights not ``read``."""
        held = {name: self._reserved(other, read if other is component else None) for name, other in self._all()}
        staged = self._staged(held)
        phase = self._phase_of(component.name)
        there = {
            name: stays + (comes if self._phase_of(name) == phase else Counter())
            for name, (stays, comes) in held.items()
        }
        taken = functools.reduce(operator.add, there.values(), Counter[str]())
        held_now = self._planner.held(component)
        away = held_now + self._planner.spared
        left = {
            device: memory.less(taken[device.name] + away[device], _why(device.name, there, held_now[device]))
            for device, memory in component.rig.memory.items()
        }
        beside = self._beside(component, staged) - held_now  # which is not left
        kept = {device: replace(memory, beside=beside[device]) for device, memory in left.items()}
        return component.rig.having(kept)

    def _all(self) -> list[tuple[str, Component]]:
        return list(self._components.items())

    def _staged(self, held: Mapping[str, _Held]) -> defaultdict[str, Counter[str]]:
        """The bytes that come to each device for each phase."""
        staged: defaultdict[str, Counter[str]] = defaultdict(Counter)
        for name, (_, comes) in held.items():
            staged[self._phase_of(name)].update(comes)
        return staged

    def _beside(self, component: Component, staged: defaultdict[str, Counter[str]]) -> Counter[Device]:
        """What must have room beside the weights of a component that stay, when others work.

        That is their values and, in another phase, what comes for that and not for its own.
        """
        phase, values = self._phase_of(component.name), self._planner.beside(component)
        stays = component.view.residency is Residency.DEVICE or bool(component.view.amounts.on_device)
        found: Counter[Device] = Counter()
        for other in {*staged, *values} if stays else {phase}:
            for device in component.devices:
                more = staged[other][device.name] - staged[phase][device.name]
                found[device] = max(found[device], values[other][device] + more)
        return found

    def _reserved(self, component: Component, read: Sequence[StoredWeight] | None) -> _Held:
        """The bytes that stay on each device, and that come there for a phase: all that a component on one device has.

        With weights that are to be ``read``: those of the others that it has placed so far, in any case. While a plan
        is made too, for it lowers all components, and checks them together.
        """
        assigned = component.assigned
        if read is not None:
            return assigned.resident_on(read), assigned.staged_on(read)
        if len(component.devices) > 1 or assigned.is_planned or self._planner.is_lowering:
            return assigned.resident_on(), assigned.staged_on() + assigned.slots_on
        (device,) = component.devices
        stays: Counter[str] = Counter()
        comes, planned = assigned.staged_on() + assigned.slots_on, assigned.planned
        for one in component.view.weights():
            if not one.residency.stages_on(device):
                stays[device.name] += one.nbytes
            elif one not in planned:
                comes[device.name] += one.nbytes
        return stays, comes


class _Placed(Protocol):
    """A pipeline whose components have devices."""

    @property
    def components(self) -> Mapping[str, Component]:
        """Its components."""

    @property
    def granted(self) -> Rig:
        """What it may use of each device."""


def host_checked(placed: Callable[[], _Placed | None]) -> Callable[[Sequence[StoredWeight]], None]:
    """What raises DoesNotFitError where a pipeline's host has no room for weights that somebody writes."""

    def check(written: Sequence[StoredWeight]) -> None:
        owner = placed()
        if owner is not None:
            _check_host(owner.components.values(), owner.granted[owner.granted.host], written)

    return check


def _check_host(components: Iterable[Component], host: Memory, written: Sequence[StoredWeight]) -> None:
    held = {one for component in components for one in component.view.weights() if one.is_in_host_memory}
    taken, needed = sum(one.nbytes for one in held), sum(one.tensor.nbytes for one in written)
    if needed > max(host.free - taken, 0):
        first, more = written[0], len(written) - 1
        raise DoesNotFitError(
            f"weight {first.name} of {first.owner}{f' and {more} more' if more else ''} would be written, which takes "
            f"{format_bytes(needed)} of host memory: the host may use {format_bytes(host.free)}, and other weights "
            f"hold {format_bytes(taken)} of it: give it a larger budget (max_vram cpu=…), load the pipeline in a "
            "smaller dtype, or write the weights to its files first"
        )


def _why(device: str, held: Mapping[str, Mapping[str, int]], by_pipeline: int) -> str:
    """Who holds what is taken of a device, the largest first, and what the pipeline's own code holds there.

    ``held`` are the bytes by device of each component, at the time that is meant.
    """
    each = Counter({name: there.get(device, 0) for name, there in held.items()})
    names = ", ".join(f"{name} {format_bytes(nbytes)}" for name, nbytes in each.most_common(3) if nbytes)
    who = f"{format_bytes(each.total())} are held by other components, or parts of this one: {names}"
    own = format_bytes(by_pipeline)
    if each.total() and by_pipeline:
        return f"{who}, and {own} by what the pipeline computes itself"
    return who if each.total() else f"{own} are held by what the pipeline computes itself"
