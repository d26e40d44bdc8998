"""Makes one plan of a call: whole, by parts of a phase, in tiles; or the refusal, with what would fit."""

from __future__ import annotations

import logging
import math
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, TypeAlias

from ..compiler.devices.device import Device
from ..compiler.errors import DoesNotFitError
from ..compiler.spec.residency import Residency
from ..components.dry import DryRun
from ..conventions.request import Request
from ..fitting.decide import Decision, speeds_here
from ..fitting.eased import elsewhere, first_that_fits, is_searched
from ..fitting.fitted import calls_of, fitted, members_of
from ..fitting.refused import Tried
from ..passes.fit.ways_out import Outcome
from ..passes.fit.workload import excess_of
from ..progress.phases import SEARCHING, phase
from ..progress.refusals import tell_refusal
from .draft import Draft
from .foreseen import called_in
from .lowered import Lowered, lowered, refusal_without
from .plannable import Plannable
from .quicker import TILES, WORTH, InTiles, NotQuicker, is_quicker, slow_on_the_host, tell_of_quicker
from .smaller import smaller_calls
from .table import Account
from .tiles import tell_of_tiles
from .tiling import AUTO, OFF, Tile

if TYPE_CHECKING:
    from .planner import Planner

logger = logging.getLogger(__name__)

Found: TypeAlias = Lowered | InTiles | NotQuicker | DoesNotFitError
"""What an attempt finds: calls that fit, tiles that are quicker or are not, or a refusal."""
Made: TypeAlias = Lowered | DoesNotFitError

_SPARES = 3
"""So often at most a plan that exceeds devices is made again with so much less of them."""


@dataclass(frozen=True)
class PlanRequest:
    """A call of a pipeline that is to be planned: its kind, its arguments, and whether its own errors are raised."""

    kind: Any
    args: Sequence[Any]
    kwargs: Mapping[str, Any]
    strict: bool = False


class Making:
    """The making of one plan: each attempt is made in drafts of its own, so that a refusal leaves nothing behind.

    Args:
        planner: traces and lowers.
        handle: the pipeline.
        asked: the call.
        base: how the pipeline is placed, which stays as it is.
    """

    def __init__(self, planner: Planner, handle: Plannable, asked: PlanRequest, base: Draft) -> None:
        self._planner = planner
        self._handle = handle
        self._asked = asked
        self._base = base
        self._tiles = planner.tiles
        self._first: DryRun | None = None
        """The first dry run, in which VAEs decode whole."""
        self._alone = ""
        """The component of which a program did not fit when it was lowered last; none where all did, alone."""
        self._compares = planner.tiles.asked == AUTO
        """Whether a plan in which a VAE decodes whole on the host is still to be compared with tiles."""
        self._unfit = 0
        """So many sizes of tiles turned out not to be quicker, or not to fit, when they were lowered."""
        self._most = math.inf
        """The seconds that a picture in tiles may take, where the whole fits too."""

    def plan(self) -> Made:
        """The plan, with the largest tiles of a VAE that fit where it does not fit whole, and that may be.

        The refusal where nothing fits has the ways out.
        """
        refused = self._whole_or_quicker()
        if isinstance(refused, Lowered):
            return refused
        found = self._apart(refused, self._base) or self._eased(refused)
        if found is not None or self._first is None:
            return found or refused
        if self._would_tiles_fail(refused, self._first):
            return self._explained(refused, self._first)
        tiles, made, smallest = self._in_fitting_tiles(self._first)
        if made is None:  # what the smallest ones lack is what there is to say
            return self._explained(smallest or refused, self._first)
        tell_of_tiles(self._handle.name, tiles, refused)
        return made

    def as_placed(self) -> Made:
        """The plan in which VAEs decode whole, as all is placed already."""
        return self._attempt(self._base)

    def _in_fitting_tiles(
        self, run: DryRun, asked: str | None = None
    ) -> tuple[Mapping[str, Tile], Lowered | None, DoesNotFitError | None]:
        """The largest tiles that fit with the plan in them, and else the refusal of the smallest ones."""
        made: dict[str, Lowered] = {}
        refused: list[DoesNotFitError] = []

        def fits(tiles: Mapping[str, Tile]) -> bool:
            found = self._attempt(self._changed(self._base, tiles=tiles))
            if isinstance(found, DoesNotFitError):
                refused.append(found)
                return False
            made[str(tiles)] = found
            return True

        tiles = self._tiles.found(self._handle, run.calls.values(), fits, asked)
        return tiles, made[str(tiles)] if tiles else None, refused[-1] if refused else None

    def _would_tiles_fail(self, refused: DoesNotFitError, run: DryRun) -> bool:
        """Whether the same is refused where VAEs take nothing, on devices that are settled: tiles cannot help then.

        A dry run in tiles takes longer than all else of a refusal.
        """
        if not refused.alone or self._tiles.asked != AUTO:
            return False
        steps = self._tiles.steps(self._handle, run.calls.values())
        draft, (roles, _) = self._base.copy(), self._handle.kinds()
        asked = draft.plan.request
        is_settled = not draft.plan.is_open and not (asked.auto_fit and is_searched(asked, roles))
        is_there = self._handle.main_of(draft).torch == run.main  # with the pipeline's own tensors where they will be
        if not steps or not is_settled or not is_there or refused.alone in steps[0]:
            return False
        draft.plan = replace(draft.plan, phases=draft.plan.phases.following(called_in(run)))
        other = refusal_without(self._handle, run, draft, steps[0])
        return other is not None and str(other) == str(refused)

    def _changed(self, draft: Draft, **changes: Any) -> Draft:
        """A draft whose plan has other phases, tiles, or bytes to spare."""
        return draft.copy(replace(draft.plan, **changes))

    def _attempt(self, base: Draft) -> Made:
        """The plan as a draft places all, with its tiles; what it leaves open is searched."""
        found = self._tried(base)
        assert not isinstance(found, (InTiles, NotQuicker)), "it is compared with nothing"
        return found

    def _tried(self, base: Draft) -> Found:
        """What an attempt gives as a draft places all, which stays as it is."""
        draft = base.copy()
        try:
            run, main = self._planner.traced_somewhere(self._handle, draft, self._asked)
        except DoesNotFitError as refused:
            return refused.as_value()
        draft.plan = replace(draft.plan, phases=draft.plan.phases.following(called_in(run)))
        self._first = self._first or run

        def lower(placed: Draft) -> Found:
            nonlocal run, main
            now = self._handle.main_of(placed)
            try:
                if now not in (main, self._handle.rig.host):  # with its own tensors where they will be
                    placed = placed.copy()
                    run, main = self._planner.trace(self._handle, placed, self._asked), now
                return self._lowered_or_quicker(run, placed)
            except DoesNotFitError as refused:  # of what the pipeline itself holds
                return refused.as_value()

        return self._decided(run, draft, lower)

    def _lowered_or_quicker(self, run: DryRun, placed: Draft) -> Found:
        """What lowering gives of a dry run; where a search placed it, tiles in which a picture is quicker."""
        decision = placed.decision
        quicker = self._compared(run, placed, decision) if decision is not None and self._compares else None
        if quicker is not None:
            return quicker
        if self._most < (decision.solution.seconds if decision is not None else math.inf):
            return NotQuicker()
        found = lowered(self._handle, run, placed)
        self._alone = found.alone if isinstance(found, DoesNotFitError) else ""
        return found

    def _decided(self, run: DryRun, draft: Draft, lower: Callable[[Draft], Found]) -> Found:
        """What lowering makes of the calls of a dry run; devices that were left open are decided first, by a search.

        On the host alone there is nothing to decide, unless the weights do not fit in its memory: they may rest in
        their files.
        """
        handle, asked = self._handle, draft.plan.request
        refused: DoesNotFitError | None = None
        if not draft.plan.is_open:
            found = lower(draft)
            is_settled = bool(handle.programs) and not draft.is_anew
            if not isinstance(found, DoesNotFitError) or is_settled or not asked.auto_fit:
                return found
            refused = found

        def attempt(request: Request, decision: Decision | None = None) -> Found:
            placed = handle.under(draft, request)
            placed.decision = decision
            return lower(placed)

        def searched(request: Request) -> Found:
            members = members_of(handle.components, draft.plan.phases, run)
            return fitted(handle.name, members, request, run, attempt)

        roles, in_files = handle.kinds()
        return first_that_fits(asked, roles, in_files, searched, attempt, refused)

    def _whole_or_quicker(self) -> Made:
        """The plan in which VAEs decode whole, or that in tiles where a picture is much quicker so."""
        try:
            found = self._tried(self._base)
            while isinstance(found, InTiles):
                in_tiles = self._quicker(found)
                if isinstance(in_tiles, Lowered):
                    return in_tiles
                self._unfit = 1 + found.size
                found = self._tried(self._base)
        finally:
            self._compares = False
        assert not isinstance(found, NotQuicker), "the whole is compared with nothing"
        return found

    def _quicker(self, quicker: InTiles) -> Lowered | NotQuicker:
        """The plan in tiles in which a picture is quicker; NotQuicker where that is not so once lowered, or refused."""
        self._compares, self._most = False, quicker.seconds
        try:
            found = self._tried(self._changed(self._base, tiles=quicker.tiles))
        finally:
            self._compares, self._most = True, math.inf
        if not isinstance(found, Lowered):
            return NotQuicker()
        tell_of_quicker(self._handle.name, quicker.tiles)
        return found

    def _compared(self, run: DryRun, placed: Draft, decision: Decision) -> InTiles | None:
        """Tiles in which a picture is quicker than with a plan that has a VAE decode on the host, if there are any."""
        slow = [one for one in run.calls.values() if one.component.name in slow_on_the_host(decision, "vae")]
        asked = replace(self._asked, strict=False)
        for size, tiles in list(enumerate(self._tiles.steps(self._handle, slow)[:TILES]))[self._unfit :]:
            in_tiles = self._planner.trace(self._handle, self._changed(placed, tiles=tiles), asked)
            if is_quicker(decision, tiles, calls_of(in_tiles)):
                return InTiles(tiles, size, WORTH * decision.solution.seconds)
        return None

    def _apart(self, refused: DoesNotFitError, base: Draft) -> Lowered | None:
        """The plan in which components of one phase leave before the next one's weights come, or None.

        Where that does not fit either, weights of components that do not fit do not stay for their phase. A plan that
        exceeds a device once its programs are together is made again with so much less of that for what comes and goes.
        """
        staged = [name for name, one in base.decided.items() if one.plan.residency is not Residency.DEVICE]
        error, draft, spares = refused, base, 0
        while True:
            if staged and not self._alone and error.over and spares < _SPARES:
                spares += 1
                draft = self._changed(draft, spared=draft.plan.spared + Counter(error.over))
            else:
                phases = draft.plan.phases
                going = [self._alone] if self._alone in staged else staged
                tighter = phases.separated(staged) or phases.letting_go(going)
                if tighter is None:
                    return None
                spares, draft = 0, self._changed(draft, phases=tighter, spared=Counter[Device]())
            found = self._attempt(draft)
            if isinstance(found, Lowered):
                together = base.plan.phases.apart
                if together != found.draft.plan.phases.apart:
                    logger.warning("%s: so components of one phase take turns on their devices", str(refused))
                return found
            error = found

    def _eased(self, refused: DoesNotFitError) -> Lowered | None:
        """The same with weights in host memory of which it was not said where they rest, or None.

        What has programs stays where it is.
        """
        base, (roles, in_files) = self._base, self._handle.kinds()
        settled = (self._handle.programs and not base.is_anew) or base.plan.is_open or not base.plan.request.auto_fit
        request = None if settled else next(elsewhere(base.plan.request, roles, in_files), None)
        return None if request is None else self._apart(refused, self._handle.under(base, request))

    def _explained(self, refused: DoesNotFitError, run: DryRun) -> DoesNotFitError:
        """A refusal with the ways out, each of which is tried."""
        handle = self._handle
        tell_refusal(lambda: refused.problem)
        with phase(SEARCHING):
            in_tiles = self._in_tiles(run)
            tried = Tried(self._lowered, lambda: self._tiled(run), lambda: self._smaller(run), in_tiles)
            return handle.refused(refused, self._base, run, tried)

    def _lowered(self, run: DryRun, request: Request) -> Outcome | None:
        """What comes of lowering what a dry run has traced, as a request places it.

        None where it is refused, and not for a number of bytes.
        """
        draft = self._handle.under(run.draft, request)
        draft.plan = replace(draft.plan, phases=draft.plan.phases.following(called_in(run)))
        found = lowered(self._handle, run, draft)
        if isinstance(found, DoesNotFitError):
            return _excess_of(found)
        if self._is_to_be_seen(run, draft) and run.again is not None:
            try:
                run.again(draft)
            except DoesNotFitError as error:
                return _excess_of(error)
        return Outcome(seconds=Account(found.generation, speeds_here(self._handle.rig)).seconds)

    def _is_to_be_seen(self, run: DryRun, draft: Draft) -> bool:
        """Whether what the pipeline itself holds is to be seen on its device yet, and no budget is exceeded by that."""
        granted = draft.plan.request.granted
        within = all(granted[device].free <= room for device, room in run.room.items())
        return run.is_on_host and not self._handle.main_of(draft).is_host and within

    def _smaller(self, run: DryRun) -> Iterator[tuple[Mapping[str, str], DryRun]]:
        """Dry runs of smaller sizes that the pipeline takes, with the options that ask for them."""
        for options, given in smaller_calls(self._handle.pipe, run, self._asked.kwargs):
            asked = replace(self._asked, kwargs={**self._asked.kwargs, **given}, strict=False)
            try:
                found = self._planner.trace(self._handle, self._base.copy(), asked)
            except DoesNotFitError:
                continue
            if _called(run) <= _called(found):
                yield options, found

    def _tiled(self, run: DryRun) -> DryRun | None:
        """A dry run in which VAEs decode in the smallest tiles, where these are theirs to take; else None."""
        steps = self._tiles.steps(self._handle, run.calls.values()) if self._tiles.asked == AUTO else []
        if not steps:
            return None
        try:
            found = self._traced_in(steps[-1], self._base)
        except DoesNotFitError:
            return None
        return found if _called(run) <= _called(found) else None

    def _traced_in(self, tiles: Mapping[str, Tile], draft: Draft) -> DryRun:
        """A dry run in some tiles, wherever the pipeline's own tensors have room."""
        asked = replace(self._asked, strict=False)
        return self._planner.traced_somewhere(self._handle, self._changed(draft, tiles=tiles), asked)[0]

    def _in_tiles(self, run: DryRun) -> tuple[str, ...]:
        """In words that decoding in tiles would fit, where it was forbidden."""
        if self._tiles.asked != OFF:
            return ()
        tiles, _, _ = self._in_fitting_tiles(run, AUTO)
        return ("decoding in tiles (--vae-tiling auto)",) if tiles else ()


def _excess_of(refused: DoesNotFitError) -> Outcome | None:
    """The bytes by which what was lowered exceeds devices; None where it was refused for something else."""
    return Outcome(excess_of(refused)) if refused.over else None


def _called(run: DryRun) -> set[str]:
    """The components that a dry run has met calls of."""
    return {one.component.name for one in run.calls.values()}
