"""Plans calls of a pipeline before anything of them is computed, and before a weight is read for them.

The pipeline's own code runs once with components that answer zeros (``components/dry.py``), for all of its steps, since
schedulers and guidance may change what is called on the way. So every kind of call is traced. Then all traces are
lowered, what has one device before what is split over several, for that can leave room for what others take at other
times. The whole is checked by phases, and only then the programs are kept; they and their traces are those that the
real call uses. What is refused leaves everything as it was, apart from the traces.

What cannot be traced runs as it is during the dry run, with zeros for weights, once for each kind of call. A call that
makes one token after another ends it: what comes later is planned when it is called, as are calls that the dry run did
not meet (after a callback changed something, or where numbers decide).
"""

from __future__ import annotations

import contextlib
import logging
import traceback
from collections import Counter, OrderedDict, defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextvars import copy_context
from dataclasses import replace
from functools import partial
from typing import Any, TypeAlias

from ..cache.patched import replaced_method
from ..compiler.devices.device import Device
from ..compiler.errors import DoesNotFitError, DovetailError
from ..compiler.spec.residency import Residency
from ..components.as_before import ContainersAsBefore
from ..components.compiled import CompiledModule
from ..components.component import Component
from ..components.dry import WAYS, CannotBePlannedError, DryCall, DryRun, dry_run, running_dry
from ..conventions.hooks import has_foreign_hooks, is_of_libraries
from ..conventions.modes import has_foreign_modes
from ..fitting.decide import Decision
from ..runtime.devices.accelerator import accelerator_of
from ..runtime.devices.out_of_memory import ran_out
from .foreseen import called_in, given_in, held_in, others_of, pieces_of, visits_in
from .generation import Generation, PlannedCall, values_of
from .isolated import is_called_back, isolated
from .kinds import kind_of
from .known import Known, Met, adopted_by
from .lasting import Lasting
from .lowerings import Lowerings
from .making import Making, PlanRequest
from .own_code import kept_around, own_code
from .plannable import Phased, Plannable, SetAside
from .quicker import InTiles, NotQuicker
from .tiles import Tiles

logger = logging.getLogger(__name__)

Found: TypeAlias = Generation | InTiles | NotQuicker
"""A plan, or what was found in the place of one."""

_KEPT = 64
"""So many plans of different kinds of calls are remembered."""


class Planner:
    """Plans the calls of one compiled pipeline, each kind of call once.

    Args:
        phase_of: gives the phase in which a component works, by its name.
        tiles: the tiles of VAEs.
    """

    def __init__(self, phase_of: Phased, tiles: Tiles) -> None:
        self.phase_of = phase_of
        self.tiles = tiles
        self._known: OrderedDict[Any, Known] = OrderedDict()
        self._values: dict[str, Counter[Device]] = {}
        self._held: dict[str, Counter[Device]] = {}
        self._lowered: Counter[Device] | None = None
        self.lowerings = Lowerings()
        self._undone = contextlib.ExitStack()
        """What takes back what the attempt that goes on has done."""
        self.planned = 0
        """How many plans were made."""
        self.is_lowering = False
        """Whether programs of a plan are being made."""
        self.spared: Counter[Device] = Counter()
        """The bytes of each device that programs are to leave, for plans were refused that did not."""
        self.refused = ""
        """The component of which a program did not fit when it was lowered last; none where all did, alone."""

    @property
    def latest(self) -> Generation | None:
        """The plan that was made or used last, if any is known."""
        return next((known.generation for known in reversed(self._known.values())), None)

    def forget(self) -> None:
        """Has the next calls be planned anew."""
        self._known.clear()
        self._values.clear()
        self._held.clear()

    def held(self, component: Component) -> Counter[Device]:
        """What the pipeline holds of each device at the call that is being lowered.

        For a call that was not foreseen (kernels may choose other strides than the trace, say): the most at any call of
        the component that was.
        """
        return self._held.get(component.name, Counter()) if self._lowered is None else self._lowered

    def spare(self, nbytes: Mapping[Device, int]) -> Callable[[], None]:
        """Has programs leave so much of devices, and no more; what is returned makes it as it was."""
        before = self.spared
        self.spared = Counter(nbytes)

        def undo() -> None:
            self.spared = before

        return undo

    def values_of(self, component: Component) -> Counter[Device]:
        """What values of a component take of each device at most, as far as it is planned."""
        return self._values.get(component.name, Counter())

    def beside(self, component: Component) -> defaultdict[str, Counter[Device]]:
        """What values of other components take of each device at most, by phase, as far as it is planned."""
        found: defaultdict[str, Counter[Device]] = defaultdict(Counter)
        for name, values in self._values.items():
            if name != component.name:
                found[self.phase_of(name)] |= values
        return found

    def plan(
        self, handle: Plannable, args: Sequence[Any], kwargs: Mapping[str, Any], *, strict: bool = False
    ) -> Generation | None:
        """The plan of a call with these arguments, or None for one that cannot be planned; made if there is none yet.

        An error that the pipeline's own code raises ends the plan there, for the call will raise it too; it is raised
        here if ``strict``. Raises DoesNotFitError where the call does not fit; nothing was read or placed for it then.
        """
        if dry_run() is not None or not _may_run_dry(handle):
            return None
        kind = kind_of(handle.pipe, args, kwargs)
        with self._as_before_on_error():
            known = self._known.get(kind)
            if known is not None:
                self.tiles.put(handle, known.tiles)
                self.phase_of.turns = known.turns
                if known.is_there(handle.components.values()) and _fits_still(handle, known.generation):
                    self._known.move_to_end(kind)
                    return known.generation
                del self._known[kind]
                self.tiles.put_back()
            self.planned += 1
            handle.measure()
            try:
                return self._plan(handle, PlanRequest(kind, args, kwargs, strict))
            finally:
                self.lowerings.forget()

    def _plan(self, handle: Plannable, asked: PlanRequest) -> Generation | None:
        """The plan beside what earlier calls have placed; where it does not fit so, that of a first call."""
        self.spared = Counter()
        if not handle.has_earlier:
            return Making(self, handle, asked).plan()
        with contextlib.suppress(DoesNotFitError):
            return Making(self, handle, asked).as_placed()
        return self._plan_anew(handle, asked, handle.set_aside())

    def _plan_anew(self, handle: Plannable, asked: PlanRequest, earlier: SetAside) -> Generation | None:
        """The plan of a first call; earlier calls keep theirs where it places all as they have it."""
        known, values, held, phases = self._known, self._values, self._held, self.phase_of.changed
        self._known, self._values, self._held = OrderedDict(), {}, {}
        undo = self.phase_of.start_over()
        found = None
        try:
            found = Making(self, handle, asked).plan()
        finally:
            if found is None:
                self._known, self._values, self._held = known, values, held
                undo()
                earlier.put_back()
        if found is None:
            return None
        if not earlier.is_same or self.phase_of.changed != phases:
            earlier.leave()
            return found
        earlier.keep()
        self._known = OrderedDict({**known, **self._known})
        self._values, self._held = _most_of(values, self._values), _most_of(held, self._held)
        return found

    @contextlib.contextmanager
    def _as_before_on_error(self) -> Iterator[None]:
        """Has an error leave what was known of the calls before."""
        turns, spared, refused = self.phase_of.turns, self.spared, self.refused
        try:
            yield
        except BaseException:
            self.phase_of.turns, self.spared, self.refused = turns, spared, refused
            raise

    def end(self) -> None:
        """Gives VAEs their own tiles back, after a call or a plan."""
        self.tiles.put_back()

    def attempt(
        self,
        handle: Plannable,
        asked: PlanRequest,
        lower: Callable[[DryRun, Decision | None], Found],
        keeps: bool,
        note: Callable[[DryRun], None],
    ) -> Found | None:
        """One plan of a call, with tiles as they are now, or what is found in its place.

        Nothing is left behind by what is refused, and by what is no plan or is not to be kept.

        Args:
            handle: the pipeline.
            asked: the call.
            lower: lowers a dry run, as was decided if anything was.
            keeps: whether the plan is kept.
            note: is given the dry run.
        """
        with self._taken_back(handle) as self._undone:
            run, main = self.traced_somewhere(handle, asked)
            self.phase_of.follow(called_in(run))
            note(run)

            def lowered(decision: Decision | None) -> Found:
                nonlocal run, main
                if handle.main not in (main, handle.rig.host):
                    run, main = self.trace(handle, asked), handle.main  # with its own tensors where they will be
                return lower(run, decision)

            found = handle.decided(run, lowered, lambda one: keeps and isinstance(one, Generation))
            if not keeps or not isinstance(found, Generation):
                return found
            self._undone.pop_all()
        if not found.calls:
            return None
        self._remember(handle, asked, run, found)
        return found

    def _remember(self, handle: Plannable, asked: PlanRequest, run: DryRun, generation: Generation) -> None:
        """Has later calls of the kind take this plan."""
        generation.tiles = self.tiles.all
        met = [Met.of(one) for one in run.calls.values()]
        adopted = adopted_by(handle.components.values())
        self._known[asked.kind] = Known(generation, met, self.tiles.now, self.phase_of.turns, adopted)
        while len(self._known) > _KEPT:
            self._known.popitem(last=False)

    def _taken_back(self, handle: Plannable) -> contextlib.ExitStack:
        """Takes back at its end what was decided of weights and counted of values meanwhile; `pop_all` keeps it."""
        undone, values, held = contextlib.ExitStack(), dict(self._values), dict(self._held)

        def restore() -> None:
            self._values, self._held = values, held

        undone.callback(restore)
        for one in handle.components.values():
            undone.callback(one.decisions())
        return undone

    def traced_somewhere(self, handle: Plannable, asked: PlanRequest) -> tuple[DryRun, Device]:
        """A dry run with the pipeline's own tensors on its main device, or on the host where they do not fit there."""
        try:
            return self.trace(handle, asked), handle.main
        except DoesNotFitError:
            with handle.on_host():
                return self.trace(handle, asked), handle.main

    def trace(self, handle: Plannable, asked: PlanRequest) -> DryRun:
        """Runs the pipeline's code dry, as far as that goes.

        Where another device stands for the main one, and code of somebody's does not take it, that is the host.

        Raises DoesNotFitError where what the pipeline itself holds does not fit where it is.
        """
        if handle.main.is_host or handle.main in handle.rig.memory:
            return self._trace(handle, asked, asked.strict)
        try:
            return self._trace(handle, asked, True)
        except DoesNotFitError:
            raise
        except Exception as error:
            logger.info("planned on the host, for not on %s: %s: %s", handle.main, type(error).__name__, str(error))
        with handle.on_host():
            return self._trace(handle, asked, asked.strict)

    def _trace(self, handle: Plannable, asked: PlanRequest, strict: bool) -> DryRun:
        """Does that where the pipeline is; errors of its code are raised if ``strict``, else they end the dry run."""
        pipe = handle.pipe
        here = [*(handle.rig if handle.rig.present else ()), handle.main]
        devices = list(dict.fromkeys(one.torch for one in here if not one.is_host))
        run = DryRun({device: there.memory()[0] for device in devices if (there := accelerator_of(device)).has_streams})
        run.main = handle.main.torch
        run.again = partial(self.trace, handle, replace(asked, strict=False))
        granted = handle.granted.memory
        run.room = {one: granted[one].free for one in here if one in granted and one.torch in run.before}
        cls = getattr(type(pipe), "_dovetail_base", type(pipe))
        kept: ContainersAsBefore | None = None
        try:
            kept = self._kept(handle, cls, asked, run)
            isolation = isolated(pipe, cls, asked.args, asked.kwargs, devices, run.main)
            with isolation as call, running_dry(run):
                lasting = Lasting(call.copies)
                run.still = lasting.still
                copy_context().run(call)  # what a component sets context variables to
                run.end(lasting.beyond)
        except CannotBePlannedError as why:
            level = logging.WARNING if asked.strict else logging.INFO
            logger.log(
                level, "the plan of %s ends early: %s, so that the rest cannot be foreseen", cls.__name__, str(why)
            )
        except Exception as error:  # the call itself raises it too, unless zeros are to blame
            if ran_out(error) or isinstance(error, DoesNotFitError):
                traceback.clear_frames(error.__traceback__)  # which hold what the pipeline had on devices
            if ran_out(error) and not run.is_on_host:
                raise _exhausted(cls.__name__, handle.placed_main, error) from None
            if strict or isinstance(error, DovetailError):
                raise
            logger.info("the plan of %s ends early: %s: %s", cls.__name__, type(error).__name__, str(error))
        finally:
            run.still = frozenset  # which knows copies of what the pipeline has on devices
            run.give_back()
            if kept is not None:
                kept.give_back()
        return run

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

    def lower(self, handle: Plannable, run: DryRun, keeps: bool) -> Generation:
        """Makes the programs of what was traced, and checks them together.

        Keeps none of them, and nothing that was decided for them, on an error, and where they are not to be kept.
        Raises the first refusal where they fit in no order.
        """
        calls = [one for one in run.calls.values() if one.key not in one.call.programs]
        first, *others = _orders(calls)
        try:
            return self._lower(handle, run, first, keeps)
        except DoesNotFitError:
            for order in others:
                with contextlib.suppress(DoesNotFitError):
                    return self._lower(handle, run, order, keeps)
            raise

    def _lower(self, handle: Plannable, run: DryRun, calls: Sequence[DryCall], keeps: bool) -> Generation:
        """Does that in an order."""
        with self._taken_back(handle) as undone:
            generation = self._made(handle, run, calls, undone)
            if keeps:
                self._note_held(handle, run)
                self._undone.push(undone.pop_all())  # until the attempt is done
            return generation

    def _note_held(self, handle: Plannable, run: DryRun) -> None:
        """Notes what the pipeline holds at the calls of a dry run."""
        for one in run.calls.values():
            held = held_in(run, (one.call, one.key), handle.rig, handle.placed_main)
            self._held[one.component.name] = self._held.get(one.component.name, Counter()) | held

    def _made(
        self, handle: Plannable, run: DryRun, calls: Sequence[DryCall], undone: contextlib.ExitStack
    ) -> Generation:
        """The programs of calls, which ``undone`` takes back."""
        self.is_lowering = True
        try:
            for one in calls:
                undone.callback(one.component.take_back, one.call, one.key)
                self._finish(handle, run, one)
            self.refused = ""
            generation = self._generation(handle, run)
            generation.check()
        finally:
            self.is_lowering = False
            self._lowered = None
        return generation

    def _finish(self, handle: Plannable, run: DryRun, one: DryCall) -> None:
        """Makes the program of a call, and counts its values."""
        component, key = one.component, (one.call, one.key)
        self.refused = component.name
        held = self._lowered = held_in(run, key, handle.rig, handle.placed_main)
        there = component.sites.main_of(one.call.module)
        one.traced.given = given_in(run, key, there, handle.rig, handle.placed_main)
        try:
            compiled = component.finish(one.call, one.key, one.traced)
        except DoesNotFitError as error:
            error.component = self.refused if error.own else ""
            raise
        values = Counter(values_of(compiled.program)) + held
        self._values[component.name] = self._values.get(component.name, Counter()) | values

    def _generation(self, handle: Plannable, run: DryRun) -> Generation:
        planned = {
            key: PlannedCall(
                one.title,
                one.component.name,
                one.component.role,
                self.phase_of(one.component.name),
                program.program,
                list(pieces_of(one.component, one.call.module, program.program)),
                run.times[key],
                held_in(run, key, handle.rig, handle.placed_main),
                type(one.component.module).__name__ if one.component.parts.reasons else "",
            )
            for key, one in run.calls.items()
            if isinstance(program := one.call.programs.get(one.key), CompiledModule)
        }
        rigs = {name: one.rig for name, one in handle.components.items()}
        visits = list(visits_in(run, planned, handle.rig, handle.placed_main))
        generation = Generation(
            list(planned.values()), rigs, handle.granted, list(others_of(handle.components)), visits
        )
        generation.own = run.own
        return generation


def _exhausted(name: str, main: Device, error: Exception) -> DoesNotFitError:
    """The refusal of a call in which what the pipeline itself holds fills its device, without any weights."""
    return DoesNotFitError(f"{name} outside its components: {type(error).__name__}: {error}", {main: 1}, WAYS)


def _most_of(one: Mapping[str, Counter[Device]], other: Mapping[str, Counter[Device]]) -> dict[str, Counter[Device]]:
    """The larger of two numbers of bytes, by component and device."""
    return {name: one.get(name, Counter()) | other.get(name, Counter()) for name in {**one, **other}}


def _fits_still(handle: Plannable, generation: Generation) -> bool:
    """Whether a plan fits beside what else lies on devices, if weights were brought since that was asked last."""
    if not handle.measure(if_changed=True):
        return True
    try:
        generation.on({name: one.rig for name, one in handle.components.items()}, handle.granted).check()
    except DoesNotFitError:
        return False
    return True


def _orders(calls: Sequence[DryCall]) -> list[list[DryCall]]:
    """The orders in which calls are lowered, the one that is tried first before the others.

    Those on one device come first, of these the ones whose weights stay there, all or some, of these the largest. So a
    component that is too large is told by its own name, what comes and goes keeps as much as the others leave, and so
    does what is split. Where that does not fit, all that stays comes before all that comes and goes, of which the
    smallest is first: a large one can make do with less than it would keep.
    """

    def comes(one: DryCall) -> bool:
        return one.component.view.residency is not Residency.DEVICE

    def turn(one: DryCall) -> tuple[bool, bool, bool, int]:
        is_split, view = len(one.component.devices) > 1, one.component.view
        return is_split, comes(one), comes(one) and not view.amounts.on_device, 0 if is_split else -view.nbytes

    first = sorted(calls, key=turn)
    second = sorted(first, key=lambda one: (comes(one), one.component.view.nbytes if comes(one) else 0))
    return [first] if first == second else [first, second]


def _may_run_dry(handle: Plannable) -> bool:
    """Whether nobody but libraries is told of calls: hooks, modes and methods of others would see zeros."""
    if has_foreign_hooks() or has_foreign_modes() or replaced_method():
        return False
    modules = [one.module for one in handle.components.values()]
    hooks = [hook for one in modules for hook in (*one._forward_hooks.values(), *one._forward_pre_hooks.values())]
    return all(map(is_of_libraries, hooks)) and not any(one.sites.left for one in handle.components.values())
