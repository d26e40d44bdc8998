"""What is decided of a component: its plan, what its weights are assigned, and the programs that were made for it.

A component has one of these for good. A draft is a copy that is made under another plan, or as if nothing had been
planned: passes, dry runs and accounts read and change the draft, and the component stays as it is until it adopts it.
"""

from __future__ import annotations

import weakref
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Protocol

from ..compiler.devices.device import Device
from ..compiler.devices.rig import Rig
from ..compiler.spec.residency import Residency
from ..runtime.store.stored_weight import StoredWeight
from .compiled import CompiledModule
from .sites import Sites
from .weights.assigned import AssignedWeights

if TYPE_CHECKING:
    from .calls import Call
    from .component import Component
    from .plan import ComponentPlan


class Beside(Protocol):
    """What is decided of all components of a pipeline."""

    def offer(self, decided: Decisions, read: Sequence[StoredWeight]) -> Rig:
        """The devices of a component with what is left for its weights that are ``read``."""


class Decisions:
    """What is decided of one component.

    Args:
        component: which keeps the decisions that hold.
        plan: where it runs and its weights rest.
        assigned: what its weights are assigned.
        sites: of the decisions that this is a draft of, if it is one.
        is_settled: whether weights that have their devices by name there have them here.
        is_anew: whether it is as if no call of the component had been planned.
    """

    def __init__(
        self,
        component: Component,
        plan: ComponentPlan,
        assigned: AssignedWeights,
        sites: Sites | None = None,
        *,
        is_settled: bool = True,
        is_anew: bool = False,
    ) -> None:
        self._component = weakref.ref(component)
        self.plan = plan
        self.assigned = assigned
        self.sites = sites.draft(self, is_settled=is_settled) if sites is not None else Sites(self)
        self.is_anew = is_anew
        self.parts = 1
        """So many calls of it are made of which none reads what the others give; 0 where they take no turns anyway."""
        self.programs: dict[tuple[Call, Any], CompiledModule] = {}
        """The programs that were made for a draft, by the calls and keys that they are to answer."""
        self._beside: weakref.ref[Any] | None = None

    def __repr__(self) -> str:
        return f"<Decisions on {self.component.name}: {self.plan}>"

    @property
    def component(self) -> Component:
        """The component; raises ReferenceError when it is gone."""
        component = self._component()
        if component is None:
            raise ReferenceError("the component is gone")
        return component

    @property
    def devices(self) -> tuple[Device, ...]:
        """Its devices, main first."""
        return self.plan.devices

    @property
    def whole_on(self) -> Device:
        """Where runs what cannot be compiled whole."""
        return self.plan.whole_on or self.plan.devices[0]

    @property
    def beside(self) -> Any:
        """What is decided of all components of the pipeline that this is a draft for; None for what holds."""
        return self._beside() if self._beside is not None else None

    @beside.setter
    def beside(self, beside: Beside) -> None:
        self._beside = weakref.ref(beside)

    def hold(self) -> None:
        """Is no draft any more: it holds, and its calls have its programs."""
        self.programs, self.is_anew, self._beside = {}, False, None

    def offer(self, read: Sequence[StoredWeight] = ()) -> Rig:
        """Its devices, main first, with what is free for it on each beside its own weights that are not ``read``."""
        beside: Beside | None = self.beside
        return beside.offer(self, read) if beside is not None else self.component.offer(self, read)

    def draft(self, plan: ComponentPlan | None = None) -> Decisions:
        """A copy, with another plan if one is given: weights that had their devices by name have them no more then.

        Raises UsageError where weights are to rest in files and lie in none.
        """
        if plan is None:
            found = Decisions(self.component, self.plan, self.assigned.draft(), self.sites, is_anew=self.is_anew)
            found.parts = self.parts
            return found
        if plan.residency is Residency.DISK:
            self.component.view.check_files()
        assigned = (self.sites.before or self.assigned).draft()
        found = Decisions(self.component, plan, assigned, self.sites, is_settled=False, is_anew=self.is_anew)
        found.assigned.rest(self.component.view.resting(plan.residency, plan.amounts))
        return found

    def draft_anew(self, plan: ComponentPlan) -> Decisions:
        """A draft under a plan as if no call of the component had been planned."""
        found = Decisions(self.component, plan, self.assigned.draft_anew(), is_anew=True)
        found.assigned.rest(self.component.view.resting(plan.residency, plan.amounts))
        return found

    def program_of(self, call: Call, key: Any) -> CompiledModule | None:
        """The program of a kind of call: that of the draft, or that of an earlier call."""
        made = self.programs.get((call, key))
        earlier = None if made is not None or self.is_anew else call.programs.get(key)
        return made or (earlier if isinstance(earlier, CompiledModule) else None)

    def agrees_with(self, other: Decisions) -> bool:
        """Whether programs of both may be used: they are spread alike, and weights are where others have them.

        What no program of this one reads is where those of the other have it.
        """
        mine, theirs = (one.plan.mode if one.plan.places_itself else "" for one in (self, other))
        spread, others = ((one.devices, one.plan.shares) for one in (self, other))
        if spread != others or mine != theirs:
            return False
        for one in self.component.view.weights():
            now, then = self.assigned.place(one), other.assigned.place(one)
            if now != then and now != (None, (), then.residency):
                return False
        return True
