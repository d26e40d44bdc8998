"""A pipeline under a plan: what is decided of each component, and what that reserves of the devices.

Everything that a plan needs is found out on a draft: a dry run is made with it, programs are lowered into it, and what
is left of a device for one component is counted from it. The pipeline is as it was until it adopts a draft that fits.
"""

from __future__ import annotations

import functools
import operator
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from ..compiler.devices.device import Device
from ..compiler.devices.rig import Rig
from ..compiler.spec.residency import Residency
from ..compiler.units import format_bytes
from ..components.component import Component
from ..components.decisions import Decisions
from ..runtime.store.stored_weight import StoredWeight
from .pipeline_plan import PipelinePlan

if TYPE_CHECKING:
    from ..fitting.decide import Decision

_Held = tuple[Counter[str], Counter[str]]
"""The bytes that stay on each device, and those that come there for a phase, by the device's name."""
_ByComponent = Mapping[str, Counter[Device]]


class Draft:
    """A pipeline under a plan.

    A component on one device reserves all its weights there from the beginning, until programs of a plan are made for
    it. One on several reserves what was placed so far, as does one of which a plan says what is read. Staged weights
    are reserved for a phase, and only those of one phase are on a device at a time, with the values of that phase.

    Args:
        plan: where all runs.
        decided: what is decided of each component, by name; of those that others have placed too.
        values: what values of a component take of each device at most, as far as it is planned.
        held: the most that the pipeline holds of each device at any call of a component that was foreseen.
        is_anew: whether it is as if no call of the pipeline had been planned.
        is_trial: whether ``decided`` are drafts, and not what holds.
    """

    def __init__(
        self,
        plan: PipelinePlan,
        decided: Mapping[str, Decisions],
        values: _ByComponent | None = None,
        held: _ByComponent | None = None,
        *,
        is_anew: bool = False,
        is_trial: bool = True,
    ) -> None:
        self.plan = plan
        self.decided = dict(decided)
        self.values = dict(values or {})
        self.held = dict(held or {})
        self.is_anew, self.is_trial = is_anew, is_trial
        self.decision: Decision | None = None
        """What a search found in this attempt, if this is its plan."""
        self.is_lowering = False
        """Whether programs of it are being made."""
        self.now: Counter[Device] | None = None
        """What the pipeline holds of each device at the call that is being lowered."""
        for one in self.decided.values() if is_trial else ():
            one.beside = self

    def copy(self, plan: PipelinePlan | None = None, decided: Mapping[str, Decisions] | None = None) -> Draft:
        """Another draft that starts from what is decided in this one, with another plan if one is given."""
        decided = {name: one.draft() for name, one in self.decided.items()} if decided is None else decided
        found = Draft(plan or self.plan, decided, self.values, self.held, is_anew=self.is_anew)
        found.decision = self.decision
        return found

    def by_component(self) -> dict[Component, Decisions]:
        """What is decided, as a dry run takes it."""
        return {one.component: one for one in self.decided.values()}

    @property
    def main(self) -> Device:
        """The main device of the largest diffusion component, where the pipeline's own tensors are in a call."""
        everyone = list(self.decided.values())
        chosen = [one for one in everyone if one.component.role == "diffusion"] or everyone
        if len(chosen) < 2:  # as is usual: the bytes of a component are added up over all its weights
            return chosen[0].devices[0] if chosen else self.plan.request.rig.host
        return max(chosen, key=lambda one: one.component.view.nbytes).devices[0]

    def add_values(self, name: str, values: Counter[Device]) -> None:
        """Counts what values of a program of a component take."""
        self.values[name] = self.values.get(name, Counter()) | values

    def add_held(self, name: str, held: Counter[Device]) -> None:
        """Counts what the pipeline holds at a call of a component."""
        self.held[name] = self.held.get(name, Counter()) | held

    def offer(self, decided: Decisions, read: Sequence[StoredWeight] = ()) -> Rig:
        """The devices of a component with what is left of their budgets by others, and by its weights not ``read``."""
        component, phase_of = decided.component, self.plan.phases
        everyone = {**self.decided, component.name: decided}
        held = {name: self._reserved(other, read if other is decided else None) for name, other in everyone.items()}
        staged: defaultdict[str, Counter[str]] = defaultdict(Counter)
        for name, (_, comes) in held.items():
            staged[phase_of(name)].update(comes)
        phase = phase_of(component.name)
        there = {
            name: stays + (comes if phase_of(name) == phase else Counter()) for name, (stays, comes) in held.items()
        }
        taken = functools.reduce(operator.add, there.values(), Counter[str]())
        # for a call that was not foreseen (kernels may choose other strides than the trace): the most at any that was
        now = self.now if self.now is not None else self.held.get(component.name, Counter[Device]())
        away = now + self.plan.spared
        rig = decided.plan.rig
        left = {
            device: memory.less(taken[device.name] + away[device], _why(device.name, there, now[device]))
            for device, memory in rig.memory.items()
        }
        beside = self._beside(decided, staged) - now  # which is not left
        return rig.having({device: replace(memory, beside=beside[device]) for device, memory in left.items()})

    def _beside(self, decided: Decisions, staged: defaultdict[str, Counter[str]]) -> Counter[Device]:
        """What must have room beside the weights of a component that stay, when others work.

        That is their values and, in another phase, what comes for that and not for its own.
        """
        name, phase_of = decided.component.name, self.plan.phases
        phase, values = phase_of(name), defaultdict[str, Counter[Device]](Counter)
        for other, most in self.values.items():
            if other != name:
                values[phase_of(other)] |= most
        stays = decided.plan.residency is Residency.DEVICE or bool(decided.plan.amounts.on_device)
        found: Counter[Device] = Counter()
        for other in {*staged, *values} if stays else {phase}:
            for device in decided.devices:
                more = staged[other][device.name] - staged[phase][device.name]
                found[device] = max(found[device], values[other][device] + more)
        return found

    def _reserved(self, decided: Decisions, read: Sequence[StoredWeight] | None) -> _Held:
        """The bytes that stay on each device, and that come there for a phase: all that a component on one device has.

        With weights that are to be ``read``: those of the others that it has placed so far, in any case. While a plan
        is made too, for it lowers all components, and checks them together.
        """
        assigned = decided.assigned
        if read is not None:
            return assigned.resident_on(read), assigned.staged_on(read)
        if len(decided.devices) > 1 or assigned.is_planned or self.is_lowering:
            return assigned.resident_on(), assigned.staged_on() + assigned.slots_on
        (device,) = decided.devices
        stays: Counter[str] = Counter()
        comes, planned = assigned.staged_on() + assigned.slots_on, assigned.planned
        for one in decided.component.view.weights():
            if not assigned.place(one).residency.stages_on(device):
                stays[device.name] += one.nbytes
            elif one not in planned:
                comes[device.name] += one.nbytes
        return stays, comes


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
