"""Decides where the components of a pipeline are, for good or for a trial, and has calls be lowered so."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, TypeVar

from ..compiler.devices.device import Device
from ..compiler.errors import DoesNotFitError
from ..components.compiled import CompiledModule
from ..components.dry import DryRun
from ..components.earlier import Earlier
from ..conventions.request import Request
from ..fitting.decide import Decision
from ..fitting.eased import elsewhere, first_that_fits, tell_of_places
from ..fitting.fitted import fitted
from ..fitting.refused import Tried, explained
from ..passes.infra.base import Pass
from .neighbour import Neighbour
from .phases import Phases
from .plan import PipelinePlan, planned
from .set_aside import EarlierCalls
from .sharing import OfAllFaces

T = TypeVar("T")

STAYS = (
    "; its components stay where earlier calls have placed them, for other pipelines use them too, or memory ran out "
    "in a call (pipe.dovetail.undo(), and compiling it again, places them anew)"
)


class Deciding(Neighbour):
    """A compiled pipeline that decides where its components are; see PlacedPipeline, which it is a part of."""

    _passes: str | Sequence[Pass] | None
    _phases: Phases
    _was_open: bool
    _is_open = OfAllFaces[bool]()
    _rests_in_files = OfAllFaces[bool]()
    decision = OfAllFaces["Decision | None"]()
    _asked = OfAllFaces[Request]()
    """What was asked, before anything of it was decided."""

    if TYPE_CHECKING:

        @property
        def programs(self) -> dict[str, list[CompiledModule]]:
            """What was compiled so far, by component."""

        def _settle(self) -> None: ...
        def _free_host(self) -> None: ...
        def _whole_on(self, main: Device) -> Device: ...

    def decided(self, run: DryRun, lower: Callable[[Decision | None], T], keeps: Callable[[T], bool]) -> T:
        """What lowering makes of the calls of a dry run; devices that were left open are decided first, by a search.

        On the host alone there is nothing to decide, unless the weights do not fit in its memory: they may rest in
        their files. Raises DoesNotFitError as lowering does, and where the search finds nothing; what was left open
        stays so then, and for what is not to be kept.
        """
        refused: DoesNotFitError | None = None
        if not self._is_open:
            try:
                return lower(None)
            except DoesNotFitError as error:
                if self.programs or not self._request.auto_fit:
                    raise
                refused = error
        return self._fitted(run, lower, keeps, refused)

    def _fitted(
        self,
        run: DryRun,
        lower: Callable[[Decision | None], T],
        keeps: Callable[[T], bool],
        refused: DoesNotFitError | None,
    ) -> T:
        """What lowering makes of calls once it is decided what was left open, or what does not fit as was asked."""
        asked, was_open, before = self._request, self._is_open, self.decision
        decision = before

        def searched(request: Request) -> T:
            nonlocal decision
            found, decision = fitted(self.name, self.components, request, self._phases, run, self._place, lower)
            return found

        def placed(request: Request) -> T:
            self._place(request)
            return lower(None)

        roles, in_files = self._kinds()
        self._is_open = is_kept = False
        try:
            found = first_that_fits(asked, roles, in_files, searched, placed, refused)
            if keeps(found):
                self.decision = decision
                self._settle()
                tell_of_places(self.name, asked, self._request, roles)
                is_kept = True
            return found
        finally:
            if not is_kept:
                self._is_open, self.decision = was_open, before
                self._place(asked)

    @property
    def has_earlier(self) -> bool:
        """Whether calls were planned that may be set aside.

        Not where other pipelines use a component too, or where memory ran out in an earlier call.
        """
        own = self._own().values()
        shared = self.borrowed or any(one.borrowers or one.streams for one in own)
        return bool(self.programs) and not shared and not self._is_open

    def set_aside(self) -> EarlierCalls:
        """Has components be as if no call had been planned, with what is returned of those that were."""
        own = self._own().values()
        request, is_open, decision = self._request, self._is_open, self.decision

        def restore() -> None:
            self._is_open, self.decision = is_open, decision
            self._place(request)

        found = EarlierCalls([Earlier.of(one) for one in own], restore, self._settle)
        self._is_open, self.decision = self._was_open, None
        self._place(replace(self._asked, rig=request.rig))
        return found

    def ease(self) -> tuple[Callable[[], None], Callable[[], None]] | None:
        """Has weights rest in host memory of which it was not said where they do; None where there are no such.

        Gives what takes it back, and what says it. What has programs stays where it is.
        """
        asked, (roles, in_files) = self._request, self._kinds()
        settled = self.programs or self._is_open or not asked.auto_fit
        request = None if settled else next(elsewhere(asked, roles, in_files), None)
        if request is None:
            return None
        self._place(request)
        return partial(self._place, asked), lambda: tell_of_places(self.name, asked, self._request, roles)

    def _kinds(self) -> tuple[dict[str, str], dict[str, bool]]:
        """The roles of its own components, as what is borrowed stays where it is, and whether they lie in files."""
        own = self._own()
        return {name: one.role for name, one in own.items()}, {name: one.view.is_in_files for name, one in own.items()}

    def refused(self, error: DoesNotFitError, run: DryRun, tried: Tried) -> DoesNotFitError:
        """The refusal of the calls of a dry run, with ways out that were tried; all is as before then."""
        asked, was_open = self._request, self._is_open
        place = None if self.programs else self._place  # what was placed for good is not placed otherwise for a trial
        if place is None:
            error = DoesNotFitError(f"{error.problem}{STAYS}", error.over, error.ways)
        self._is_open = False
        try:
            return explained(error, self.components, asked, self._phases, run, place, tried)
        finally:
            self._is_open = was_open
            if place:
                place(asked)

    def _place(self, request: Request) -> None:
        """Gives the components the devices of a request, and their weights the places where they rest."""
        self._request = request
        self._adopt(self._planned(request))

    def _planned(self, request: Request) -> PipelinePlan:
        """What a request says of its own components."""
        return planned(request, self._modules(), self._roles, self._whole_on, self._own())

    def _adopt(self, plan: PipelinePlan) -> None:
        """Has its own components be where a plan says."""
        for name, one in self._own().items():
            one.move(plan.components[name])
        self._tell_device()
        if self._rests_in_files:
            self._free_host()
