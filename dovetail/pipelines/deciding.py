"""Drafts of a compiled pipeline under the plans that are tried, and the one that it adopts."""

from __future__ import annotations

import contextlib
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING

from ..compiler.devices.device import Device
from ..compiler.errors import DoesNotFitError
from ..compiler.spec.residency import ALIKE, Residency
from ..components.adopting import adopting
from ..components.compiled import CompiledModule
from ..components.dry import DryRun
from ..components.plan import ComponentPlan
from ..conventions.request import Request, tell_unused_split
from ..fitting.decide import Decision
from ..fitting.eased import tell_of_places
from ..fitting.fitted import members_of
from ..fitting.refused import Tried, explained
from ..passes.infra.base import Pass
from ..planning.draft import Draft
from ..planning.foreseen import called_in
from ..planning.phases import Phases
from ..planning.pipeline_plan import PipelinePlan
from .neighbour import Neighbour
from .plan import component_plans
from .sharing import OfAllFaces

STAYS = (
    "; its components stay where earlier calls have placed them, for other pipelines use them too, or memory ran out "
    "in a call (pipe.dovetail.undo(), and compiling it again, places them anew)"
)


class Deciding(Neighbour):
    """A compiled pipeline that decides where its components are; see PlacedPipeline, which it is a part of."""

    _passes: str | Sequence[Pass] | None
    _was_open: bool
    _is_open = OfAllFaces[bool]()
    _rests_in_files = OfAllFaces[bool]()
    decision = OfAllFaces[Decision | None]()
    _asked = OfAllFaces[Request]()
    """What was asked, before anything of it was decided."""

    if TYPE_CHECKING:

        @property
        def programs(self) -> dict[str, list[CompiledModule]]:
            """What was compiled so far, by component."""

        def _settle(self) -> None: ...
        def _whole_on(self, main: Device, is_open: bool) -> Device: ...

    @property
    def _phases(self) -> Phases:
        """The phases of the plans that hold."""
        return self._planner.phases

    def now(self) -> Draft:
        """What holds, as a draft; no copy of it."""
        everyone = {name: one.decided for name, one in self.components.items()}
        return Draft(self._plan_now(), everyone, self._planner.values, self._planner.held, is_trial=False)

    def draft(self) -> Draft:
        """A draft of what holds."""
        now = self.now()
        return now.copy(replace(now.plan, spared=Counter(), tiles={}))

    def draft_anew(self) -> Draft:
        """A draft as if no call had been planned, of what was asked at first."""
        request = replace(self._asked, rig=self._request.rig)
        plans = self._planned(request, self._was_open)
        plan = PipelinePlan(request, plans, self._was_open, self._phases.together())
        decided = {name: one.decided.draft_anew(plans[name]) for name, one in self.components.items()}
        return Draft(plan, decided, is_anew=True)

    def under(self, draft: Draft, request: Request) -> Draft:
        """A draft in which components are where a request says, and nothing is open any more."""
        plans = self._planned(request, False)
        decided = {name: one.draft(plans.get(name)) for name, one in draft.decided.items()}
        return draft.copy(replace(draft.plan, request=request, components=plans, is_open=False), decided)

    @contextlib.contextmanager
    def adopting(self, draft: Draft, before: Draft, earlier_stay: bool) -> Iterator[None]:
        """Has a draft hold that fits, which was made for one ``before``; an error within leaves all as it was.

        Where weights rest elsewhere than a person may think, that is said.
        """
        was = self._request, self._is_open, self.decision
        is_moved = self._is_open or not earlier_stay
        is_moved |= any(one.plan != self.components[name].plan for name, one in draft.decided.items())
        try:
            with adopting(list(draft.decided.values()), earlier_stay=earlier_stay):
                kept = None if draft.is_anew else self.decision
                self._request, self._is_open = draft.plan.request, False
                self.decision = draft.decision or kept
                if is_moved:
                    self._settle()
                tell_of_places(self.name, before.plan.request, self._request, self.kinds()[0])
                tell_unused_split(self._request, self.kinds()[0])
                yield
        except BaseException:
            self._request, self._is_open, self.decision = was
            self._tell_device()
            raise

    @property
    def has_earlier(self) -> bool:
        """Whether calls were planned that may be set aside.

        Not where other pipelines use a component too, or where memory ran out in an earlier call.
        """
        own = self._own().values()
        shared = self.borrowed or any(one.borrowers or one.streams for one in own)
        return bool(self.programs) and not shared and not self._is_open

    def kinds(self) -> tuple[dict[str, str], dict[str, bool]]:
        """The roles of its own components, as what is borrowed stays where it is, and whether they lie in files."""
        own = self._own()
        return {name: one.role for name, one in own.items()}, {name: one.view.is_in_files for name, one in own.items()}

    def refused(self, error: DoesNotFitError, base: Draft, run: DryRun, tried: Tried) -> DoesNotFitError:
        """The refusal of the calls of a dry run as a draft has them placed, with ways out that were tried.

        What was placed for good is not placed otherwise.
        """
        stays = bool(self.programs) and not base.is_anew
        if stays:
            error = DoesNotFitError(f"{error.problem}{STAYS}", error.over, error.ways)
        phases = base.plan.phases.following(called_in(run))
        members = members_of(self.components, phases, run)
        return explained(error, members, base.plan.request, run, tried, lowers=not stays)

    def _place(self, request: Request) -> None:
        """Gives the components the devices of a request, and their weights the places where they rest."""
        plans = self._planned(request, self._is_open)
        with adopting([one.decided.draft(plans[name]) for name, one in self._own().items()]):
            self._request = request
            self._tell_device()

    def _planned(self, request: Request, is_open: bool) -> dict[str, ComponentPlan]:
        """What a request says of its own components, while devices are open or no more."""
        own, given = self._own(), (self._modules(), self._roles)
        plans = component_plans(request, *given, partial(self._whole_on, is_open=is_open), own)
        if not self._rests_in_files or is_open:
            return plans
        return {name: _in_files(plan) if own[name].view.is_in_files else plan for name, plan in plans.items()}

    def _plan_now(self) -> PipelinePlan:
        """Where it runs now."""
        plans = {name: one.plan for name, one in self._own().items()}
        tiles = self._planner.tiles.now
        return PipelinePlan(self._request, plans, self._is_open, self._phases, tiles, self._planner.spared)


def _in_files(plan: ComponentPlan) -> ComponentPlan:
    """The plan of a component in whose files weights rest that the host computes with, between phases."""
    stays = plan.residency is Residency.DEVICE and all(device.is_host for device in plan.devices)
    return replace(plan, residency=Residency.DISK, amounts=ALIKE) if stays else plan
