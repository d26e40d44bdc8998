"""Plans calls of a pipeline before anything of them is computed, and before a weight is read for them.

The pipeline's own code runs once with components that answer zeros (``components/dry.py``), for all of its steps, since
schedulers and guidance may change what is called on the way. So every kind of call is traced. Then all traces are
lowered into a draft, what has one device before what is split over several, for that can leave room for what others
take at other times. The whole is checked by phases, and only then the pipeline adopts the draft with its programs; they
and their traces are those that the real call uses. What is refused leaves nothing behind but traces.

What cannot be traced runs as it is during the dry run, with zeros for weights, once for each kind of call. A call that
makes one token after another ends it: what comes later is planned when it is called, as are calls that the dry run did
not meet (after a callback changed something, or where numbers decide).
"""

from __future__ import annotations

import logging
import traceback
from collections import Counter, OrderedDict
from collections.abc import Mapping, Sequence
from contextvars import copy_context
from dataclasses import replace
from functools import partial
from typing import Any

from ..cache.patched import replaced_method
from ..compiler.devices.device import Device
from ..compiler.errors import DoesNotFitError, DovetailError, unless_refused
from ..components.adopting import agree_with_earlier
from ..components.as_before import ContainersAsBefore
from ..components.component import Component
from ..components.dry import WAYS, CannotBePlannedError, DryRun, dry_run, running_dry
from ..conventions.hooks import has_foreign_hooks, is_of_libraries
from ..conventions.modes import has_foreign_modes
from ..conventions.picture import picture_of
from ..passes.states.kept_forms import kept as states_kept
from ..runtime.devices.accelerator import accelerator_of
from ..runtime.devices.out_of_memory import ran_out
from .draft import Draft
from .foreseen import others_of, places
from .generation import Generation, Piece
from .isolated import is_called_back, isolated
from .kinds import kind_of
from .known import Known, Met, adopted_by, programs_of
from .lasting import Lasting
from .lowered import Lowered
from .lowerings import Lowerings
from .making import Making, PlanRequest
from .own_code import kept_around, own_code
from .phases import Phases
from .plannable import Plannable
from .tiles import Tiles

logger = logging.getLogger(__name__)

_KEPT = 64
"""So many plans of different kinds of calls are remembered."""


class Planner:
    """Plans the calls of one compiled pipeline, each kind of call once.

    Args:
        tiles: the tiles of VAEs.
    """

    def __init__(self, tiles: Tiles) -> None:
        self.tiles = tiles
        self.phases = Phases()
        """The phases of the plans that hold."""
        self.spared: Counter[Device] = Counter()
        """The bytes of each device that programs leave, for plans were refused that did not."""
        self.values: dict[str, Counter[Device]] = {}
        """What values of each component take of each device at most, as far as it is planned."""
        self.held: dict[str, Counter[Device]] = {}
        """The most that the pipeline holds of each device at any call of a component that was foreseen."""
        self._known: OrderedDict[Any, Known] = OrderedDict()
        self.lowerings = Lowerings()
        self.planned = 0
        """How many plans were made."""

    @property
    def latest(self) -> Generation | None:
        """The plan that was made or used last, if any is known."""
        return next((known.generation for known in reversed(self._known.values())), None)

    def forget(self) -> None:
        """Has the next calls be planned anew."""
        self._known.clear()
        self.values, self.held = {}, {}

    def values_of(self, component: Component) -> Counter[Device]:
        """What values of a component take of each device at most, as far as it is planned."""
        return self.values.get(component.name, Counter())

    def plan(
        self, handle: Plannable, args: Sequence[Any], kwargs: Mapping[str, Any], *, strict: bool = False
    ) -> Generation | None:
        """The plan of a call with these arguments, or None for one that cannot be planned; made if there is none yet.

        An error that the pipeline's own code raises ends the plan there, for the call will raise it too; it is raised
        here if ``strict``. Raises DoesNotFitError where the call does not fit; nothing was read or placed for it then.
        """
        if dry_run() is not None or not may_run_dry(handle):
            return None
        kind = kind_of(handle.pipe, args, kwargs)
        known = self._known.get(kind)
        if known is not None:
            self.tiles.put(handle, known.tiles)
            if known.is_there(handle.components.values()) and (known := _fits_still(handle, known)) is not None:
                self.phases = replace(self.phases, turns=known.turns)
                self._known[kind] = known
                self._known.move_to_end(kind)
                return known.now(handle.rig.memory)
            del self._known[kind]
            self.tiles.put_back()
        self.planned += 1
        handle.measure()
        try:
            with states_kept():
                found = self._plan(handle, PlanRequest(kind, args, kwargs, strict))
            return unless_refused(found)
        finally:
            self.lowerings.forget()

    def _plan(self, handle: Plannable, asked: PlanRequest) -> Generation | DoesNotFitError | None:
        """The plan beside what earlier calls have placed; where it does not fit so, that of a first call."""
        base = handle.draft()
        making = Making(self, handle, asked, base)
        found = making.as_placed() if handle.has_earlier else making.plan()
        if isinstance(found, DoesNotFitError) and handle.has_earlier:
            base = handle.draft_anew()
            found = Making(self, handle, asked, base).plan()
        return self._adopt(handle, asked, found, base) if isinstance(found, Lowered) else found

    def _adopt(self, handle: Plannable, asked: PlanRequest, found: Lowered, base: Draft) -> Generation | None:
        """Has the pipeline be as planned; earlier calls keep their plans where it places all as they have it.

        A plan without calls decides of devices only what was open, and is not remembered.
        """
        draft, plan, is_empty = found.draft, found.draft.plan, not found.generation.calls
        if is_empty and draft.is_anew:
            return None
        before = self.phases.apart, self.phases.going
        stays = agree_with_earlier(list(draft.decided.values()))
        stays &= not draft.is_anew or before == (plan.phases.apart, plan.phases.going)
        if stays and draft.is_anew:  # which knows nothing of what earlier calls have brought
            beside = found.generation.beside(_others_of(handle))
            stays = beside.refusal() is None
            found = replace(found, generation=beside) if stays else found
        known = OrderedDict(self._known) if stays else OrderedDict[Any, Known]()
        values, held = (self.values, self.held) if stays and draft.is_anew else ({}, {})
        was = self.phases, self.spared, self.values, self.held, self._known
        try:
            with handle.adopting(draft, base, stays):
                self.tiles.put(handle, plan.tiles)
                if not is_empty:
                    known[asked.kind] = self._known_of(handle, found)
                    known.popitem(last=False) if len(known) > _KEPT else None
                self.values, self.held = _most_of(values, draft.values), _most_of(held, draft.held)
                self.phases, self.spared, self._known = plan.phases, plan.spared, known
        except BaseException:
            self.phases, self.spared, self.values, self.held, self._known = was
            raise
        self.lowerings.keep(call.program for call in found.generation.calls)
        return None if is_empty else known[asked.kind].now(handle.rig.memory)

    def _known_of(self, handle: Plannable, found: Lowered) -> Known:
        """What later calls of the kind take."""
        found.generation.tiles, found.generation.picture = self.tiles.all, found.run.picture
        met = [Met.of(one) for one in found.run.calls.values()]
        adopted = adopted_by(handle.components.values())
        programs = programs_of(handle.components.values())
        left = found.run.leaves if handle.rig.present else None  # where nothing runs, nothing is left
        left = left and left.placed(places(found.run, handle.rig, found.draft.main))
        return Known(found.generation, met, self.tiles.now, found.draft.plan.phases.turns, adopted, programs, left)

    def end(self) -> None:
        """Gives VAEs their own tiles back, after a call or a plan."""
        self.tiles.put_back()

    def traced_somewhere(self, handle: Plannable, draft: Draft, asked: PlanRequest) -> tuple[DryRun, Device]:
        """A dry run with the pipeline's own tensors on its main device, or on the host where they do not fit there.

        Gives where they were, too.
        """
        main = handle.main_of(draft)
        try:
            return self.trace(handle, draft, asked), main
        except DoesNotFitError:
            return self._trace(handle, draft, handle.rig.host, asked, asked.strict), handle.rig.host

    def trace(self, handle: Plannable, draft: Draft, asked: PlanRequest) -> DryRun:
        """Runs the pipeline's code dry, as far as that goes, with what a draft has decided, which may decide more.

        Where another device stands for the main one, and code of somebody's does not take it, that is the host.

        Raises DoesNotFitError where what the pipeline itself holds does not fit where it is.
        """
        main = handle.main_of(draft)
        if main.is_host or main in handle.rig.memory:
            return self._trace(handle, draft, main, asked, asked.strict)
        try:
            return self._trace(handle, draft, main, asked, True)
        except DoesNotFitError:
            raise
        except Exception as error:
            logger.info("planned on the host, for not on %s: %s: %s", main, type(error).__name__, str(error))
        return self._trace(handle, draft, handle.rig.host, asked, asked.strict)

    def _trace(self, handle: Plannable, draft: Draft, main: Device, asked: PlanRequest, strict: bool) -> DryRun:
        """Does that with the pipeline's own tensors on a device.

        Errors of its code are raised if ``strict``, else they end the dry run.
        """
        pipe = handle.pipe
        here = [*(handle.rig if handle.rig.present else ()), main]
        devices = list(dict.fromkeys(one.torch for one in here if not one.is_host))
        run = DryRun({device: there.memory()[0] for device in devices if (there := accelerator_of(device)).has_streams})
        run.main = main.torch
        run.again = partial(self._again, handle, replace(asked, strict=False))
        run.draft, run.decided = draft, draft.by_component()
        granted = draft.plan.request.granted.memory
        run.room = {one: granted[one].free for one in here if one in granted and one.torch in run.before}
        cls = getattr(type(pipe), "_dovetail_base", type(pipe))
        kept: ContainersAsBefore | None = None
        makes = partial(picture_of, cls.__call__, asked.args, asked.kwargs)
        run.picture = makes(None)  # should it end early
        try:
            kept = self._kept(handle, cls, asked, run)
            isolation = isolated(pipe, cls, asked.args, asked.kwargs, devices, run.main)
            own = handle.own_on(main, draft)
            with own, self.tiles.within(handle, draft.plan.tiles), isolation as call, running_dry(run):
                lasting = Lasting(call.copies, pipe)
                run.changed = lasting.changed
                run.picture = makes(copy_context().run(call))  # what a component sets context variables to
                run.end(lasting.beyond)
                run.leaves = lasting.left()
        except CannotBePlannedError as why:
            level = logging.WARNING if asked.strict else logging.INFO
            logger.log(
                level, "the plan of %s ends early: %s, so that the rest cannot be foreseen", cls.__name__, str(why)
            )
        except Exception as error:  # the call itself raises it too, unless zeros are to blame
            if ran_out(error) or isinstance(error, DoesNotFitError):
                traceback.clear_frames(error.__traceback__)  # which hold what the pipeline had on devices
            if ran_out(error) and not run.is_on_host:
                raise _exhausted(cls.__name__, draft.main, error) from None
            if strict or isinstance(error, DovetailError):
                raise
            logger.info("the plan of %s ends early: %s: %s", cls.__name__, type(error).__name__, str(error))
        finally:
            run.changed = frozenset  # which knows copies of what the pipeline has on devices
            run.give_back()
            if kept is not None:
                kept.give_back()
        return run

    def _again(self, handle: Plannable, asked: PlanRequest, draft: Draft) -> DryRun:
        """The same call once more, as a draft places all, which stays as it is."""
        return self.trace(handle, draft.copy(), asked)

    def _kept(self, handle: Plannable, cls: type[Any], asked: PlanRequest, run: DryRun) -> ContainersAsBefore | None:
        """What the pipeline and its components hold, where somebody's own code runs around these in a dry run."""
        named = (value for name, value in asked.kwargs.items() if not is_called_back(name, value))
        try:
            code = own_code(handle.pipe, cls, (*asked.args, *named))
            kept = kept_around(handle.pipe, code) if code else None
        except Exception as error:  # objects of somebody's own may raise anything when they are looked at
            raise CannotBePlannedError(f"what it holds cannot be looked at: {error}") from error
        for component in handle.components.values() if code else ():
            run.keep(component)
        return kept


def _exhausted(name: str, main: Device, error: Exception) -> DoesNotFitError:
    """The refusal of a call in which what the pipeline itself holds fills its device, without any weights."""
    return DoesNotFitError(f"{name} outside its components: {type(error).__name__}: {error}", {main: 1}, WAYS)


def _most_of(one: Mapping[str, Counter[Device]], other: Mapping[str, Counter[Device]]) -> dict[str, Counter[Device]]:
    """The larger of two numbers of bytes, by component and device."""
    return {name: one.get(name, Counter()) | other.get(name, Counter()) for name in {**one, **other}}


def _fits_still(handle: Plannable, known: Known) -> Known | None:
    """A plan beside what lies on devices now, weights that calls of other kinds have brought since among it.

    None where it does not fit there any more.
    """
    is_measured, programs = handle.measure(if_changed=True), programs_of(handle.components.values())
    if programs != known.programs:
        known = replace(known, generation=known.generation.beside(_others_of(handle)), programs=programs)
        is_measured = True
    now = known.now(handle.rig.memory)
    if not is_measured and now is known.generation:
        return known
    rigs = {name: one.rig for name, one in handle.components.items()}
    return known if now.on(rigs, handle.granted).refusal() is None else None


def _others_of(handle: Plannable) -> list[Piece]:
    """What stays on devices of weights that programs of all earlier calls read."""
    return list(others_of([one.decided for one in handle.components.values()]))


def may_run_dry(handle: Plannable) -> bool:
    """Whether nobody but libraries is told of calls: hooks, modes and methods of others would see zeros."""
    if has_foreign_hooks() or has_foreign_modes() or replaced_method():
        return False
    modules = [one.module for one in handle.components.values()]
    hooks = [hook for one in modules for hook in (*one._forward_hooks.values(), *one._forward_pre_hooks.values())]
    return all(map(is_of_libraries, hooks)) and not any(one.sites.left for one in handle.components.values())
