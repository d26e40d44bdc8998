"""Makes one plan of a call: whole, by parts of a phase, in tiles; or the refusal, with what would fit."""

from __future__ import annotations

import contextlib
import logging
import math
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any

from ..compiler.errors import DoesNotFitError
from ..compiler.spec.residency import Residency
from ..components.component import Component
from ..components.dry import DryRun
from ..fitting.decide import Decision, speeds_here
from ..fitting.fitted import calls_of
from ..fitting.refused import Tried
from ..passes.fit.ways_out import Outcome
from ..passes.fit.workload import excess_of
from .generation import Generation
from .plannable import Plannable
from .quicker import TILES, WORTH, InTiles, NotQuicker, is_quicker, slow_on_the_host, tell_of_quicker
from .smaller import smaller_calls
from .table import Account
from .tiles import tell_of_tiles
from .tiling import AUTO, OFF, Tile

if TYPE_CHECKING:
    from .planner import Found, Planner

logger = logging.getLogger(__name__)

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
    """The making of one plan.

    Args:
        planner: traces and lowers.
        handle: the pipeline.
        asked: the call.
    """

    def __init__(self, planner: Planner, handle: Plannable, asked: PlanRequest) -> None:
        self._planner = planner
        self._handle = handle
        self._asked = asked
        self._tiles = planner.tiles
        self._name = type(handle.pipe).__name__
        self._first: DryRun | None = None
        """The first dry run, in which VAEs decode whole."""
        self._compares = planner.tiles.asked == AUTO
        """Whether a plan in which a VAE decodes whole on the host is still to be compared with tiles."""
        self._spares = 0
        """So often a plan that exceeded devices was made again with less of them since anything else was changed."""
        self._unfit = 0
        """So many sizes of tiles turned out not to be quicker, or not to fit, when they were lowered."""
        self._most = math.inf
        """The seconds that a picture in tiles may take, where the whole fits too."""

    def plan(self) -> Generation | None:
        """The plan, with the largest tiles of a VAE that fit where it does not fit whole, and that may be.

        Raises DoesNotFitError where nothing fits, with the ways out.
        """
        try:
            return self._whole_or_quicker()
        except DoesNotFitError as refused:
            found = self._apart(refused) or self._eased(refused)
            if found is not None:
                return found
            if self._first is None:
                raise
            in_tiles = [refused]

            def attempt(some: Mapping[str, Tile]) -> None:
                try:
                    self._tried(some, False)
                except DoesNotFitError as error:
                    in_tiles.append(error)
                    raise

            tiles = self._tiles.found(self._handle, self._first.calls.values(), attempt)
            if not tiles:  # what the smallest ones lack is what there is to say
                raise self._explained(in_tiles[-1], self._first) from None
            generation = self._attempt(tiles)
            tell_of_tiles(self._name, tiles, refused)
            return generation

    def as_placed(self) -> Generation | None:
        """The plan in which VAEs decode whole, as all is placed already; raises DoesNotFitError."""
        return self._attempt({})

    def _attempt(self, tiles: Mapping[str, Tile]) -> Generation | None:
        """The plan with some tiles, which stay for the call; raises DoesNotFitError."""
        found = self._tried(tiles)
        assert not isinstance(found, (InTiles, NotQuicker)), "it is compared with nothing"
        return found

    def _tried(self, tiles: Mapping[str, Tile], keeps: bool = True) -> Found | None:
        """What an attempt with some tiles gives, which stay for the call where it is a plan that is kept."""
        self._tiles.put(self._handle, tiles)

        def lower(run: DryRun, decision: Decision | None) -> Found:
            quicker = self._compared(run, decision) if decision is not None and self._compares else None
            if quicker is not None:
                return quicker
            if self._most < (decision.solution.seconds if decision is not None else math.inf):
                return NotQuicker()
            return self._planner.lower(self._handle, run, keeps)

        found: Found | None = NotQuicker()
        try:
            found = self._planner.attempt(self._handle, self._asked, lower, keeps, self._note)
            return found
        finally:
            if not keeps or isinstance(found, (InTiles, NotQuicker)):
                self._tiles.put_back()

    def _note(self, run: DryRun) -> None:
        self._first = self._first or run

    def _whole_or_quicker(self) -> Generation | None:
        """The plan in which VAEs decode whole, or that in tiles where a picture is much quicker so."""
        try:
            found = self._tried({})
            while isinstance(found, InTiles):
                in_tiles = self._quicker(found)
                if not isinstance(in_tiles, NotQuicker):
                    return in_tiles
                self._unfit = 1 + found.size
                found = self._tried({})
        finally:
            self._compares = False
        assert not isinstance(found, NotQuicker), "the whole is compared with nothing"
        return found

    def _quicker(self, quicker: InTiles) -> Generation | NotQuicker | None:
        """The plan in tiles in which a picture is quicker; NotQuicker where that is not so once lowered, or refused."""
        self._compares, self._most = False, quicker.seconds
        try:
            found = self._tried(quicker.tiles)
        except DoesNotFitError:
            return NotQuicker()
        finally:
            self._compares, self._most = True, math.inf
        assert not isinstance(found, InTiles), "it is compared with nothing"
        if not isinstance(found, NotQuicker):
            tell_of_quicker(self._name, quicker.tiles)
        return found

    def _compared(self, run: DryRun, decision: Decision) -> InTiles | None:
        """Tiles in which a picture is quicker than with a plan that has a VAE decode on the host, if there are any."""
        slow = [one for one in run.calls.values() if one.component.name in slow_on_the_host(decision, "vae")]
        for size, tiles in list(enumerate(self._tiles.steps(self._handle, slow)[:TILES]))[self._unfit :]:
            self._tiles.put(self._handle, tiles)
            in_tiles = self._planner.trace(self._handle, replace(self._asked, strict=False))
            if is_quicker(decision, tiles, calls_of(in_tiles)):
                return InTiles(tiles, size, WORTH * decision.solution.seconds)
        self._tiles.put_back()
        return None

    def _apart(self, refused: DoesNotFitError) -> Generation | None:
        """The plan in which components of one phase leave before the next one's weights come, or None.

        Where that does not fit either, weights of components that do not fit do not stay for their phase. A plan that
        exceeds a device once its programs are together is made again with so much less of that for what comes and goes.
        """
        components, planner = self._handle.components, self._planner
        self._spares = 0
        staged = [name for name, one in components.items() if one.view.residency is not Residency.DEVICE]
        error, together = refused, [planner.phase_of(name) for name in staged]
        with contextlib.ExitStack() as undone:
            while self._tighter(staged, error, undone):
                try:
                    generation = self._attempt({})
                except DoesNotFitError as again:
                    error = again
                    continue
                if together != [planner.phase_of(name) for name in staged]:
                    logger.warning("%s: so components of one phase take turns on their devices", str(refused))
                undone.pop_all()
                return generation
        return None

    def _eased(self, refused: DoesNotFitError) -> Generation | None:
        """The same with weights in host memory of which it was not said where they rest, or None."""
        eased = self._handle.ease()
        if eased is None:
            return None
        undo, tell = eased
        with contextlib.ExitStack() as undone:
            undone.callback(undo)
            found = self._apart(refused)
            if found is not None:
                undone.pop_all()
                tell()
            return found

    def _tighter(self, staged: Sequence[str], error: DoesNotFitError, undone: contextlib.ExitStack) -> bool:
        """Has a plan that was refused need less, where something is left that can; ``undone`` takes it back."""
        planner, phases = self._planner, self._planner.phase_of
        if staged and not planner.refused and error.over and self._spares < _SPARES:
            self._spares += 1
            undone.callback(planner.spare(planner.spared + Counter(error.over)))
            return True
        going = [planner.refused] if planner.refused in staged else staged
        self._spares = 0
        undone.callback(planner.spare({}))
        undo = phases.separate(staged) or phases.let_go(going)
        if undo is not None:
            undone.callback(undo)
        return undo is not None

    def _explained(self, refused: DoesNotFitError, run: DryRun) -> DoesNotFitError:
        """A refusal with the ways out, each of which is tried as far as nothing of it is kept."""
        handle = self._handle
        folder = getattr(handle.pipe, "name_or_path", None) or "MODEL_FOLDER"
        tried = Tried(self._lowered, lambda: self._tiled(run), lambda: self._smaller(run), self._in_tiles(run), folder)
        return handle.refused(refused, run, tried)

    def _lowered(self, run: DryRun) -> Outcome | None:
        """What comes of lowering what a dry run has traced, as it is placed now; nothing of it is kept.

        None where it is refused, and not for a number of bytes.
        """
        try:
            generation = self._planner.lower(self._handle, run, False)
            if self._is_to_be_seen(run) and run.again is not None:
                run.again()
        except DoesNotFitError as error:
            return Outcome(excess_of(error)) if error.over else None
        return Outcome(seconds=Account(generation, speeds_here(self._handle.rig)).seconds)

    def _is_to_be_seen(self, run: DryRun) -> bool:
        """Whether what the pipeline itself holds is to be seen on its device yet, and no budget is exceeded by that."""
        handle = self._handle
        within = all(handle.granted[device].free <= room for device, room in run.room.items())
        return run.is_on_host and not handle.main.is_host and within

    def _smaller(self, run: DryRun) -> Iterator[tuple[Mapping[str, str], DryRun]]:
        """Dry runs of smaller sizes that the pipeline takes, with the options that ask for them."""
        for options, given in smaller_calls(self._handle.pipe, run, self._asked.kwargs):
            asked = replace(self._asked, kwargs={**self._asked.kwargs, **given}, strict=False)
            with as_before_on_error(list(self._handle.components.values())):
                found = self._planner.trace(self._handle, asked)
                if _called(run) <= _called(found):
                    yield options, found

    def _tiled(self, run: DryRun) -> DryRun | None:
        """A dry run in which VAEs decode in the smallest tiles, where these are theirs to take; else None."""
        steps = self._tiles.steps(self._handle, run.calls.values()) if self._tiles.asked == AUTO else []
        with contextlib.suppress(DoesNotFitError):
            found = self._traced_in(steps[-1]) if steps else None
            if found is not None and _called(run) <= _called(found):
                found.again = partial(self._traced_in, steps[-1])
                return found
        return None

    def _traced_in(self, tiles: Mapping[str, Tile]) -> DryRun:
        """A dry run in some tiles, wherever the pipeline's own tensors have room."""
        self._tiles.put(self._handle, tiles)
        try:
            with as_before_on_error(list(self._handle.components.values())):
                return self._planner.traced_somewhere(self._handle, replace(self._asked, strict=False))[0]
        finally:
            self._tiles.put_back()

    def _in_tiles(self, run: DryRun) -> tuple[str, ...]:
        """In words that decoding in tiles would fit, where it was forbidden."""
        if self._tiles.asked != OFF:
            return ()

        def attempt(tiles: Mapping[str, Tile]) -> None:
            self._tried(tiles, False)

        found = self._tiles.found(self._handle, run.calls.values(), attempt, AUTO)
        return ("decoding in tiles (--vae-tiling auto)",) if found else ()


def _called(run: DryRun) -> set[str]:
    """The components that a dry run has met calls of."""
    return {one.component.name for one in run.calls.values()}


@contextlib.contextmanager
def as_before_on_error(components: Sequence[Component]) -> Iterator[None]:
    """Has an error leave no decision on weights that was made meanwhile."""
    restores = [component.decisions() for component in components]
    try:
        yield
    except BaseException:
        for restore in restores:
            restore()
        raise
