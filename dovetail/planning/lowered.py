"""Lowers the traced calls of a pipeline into a draft of it, and checks them together: an account, or a refusal."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Collection, Sequence
from dataclasses import dataclass

from ..compiler.errors import DoesNotFitError
from ..compiler.spec.residency import Residency
from ..components.component import Component
from ..components.dry import DryCall, DryRun
from .alternating import kept_apart, takes_turns
from .draft import Draft
from .foreseen import copied_in, given_in, held_in, others_of, pieces_of, times_in, turns_in, visits_in
from .generation import Generation, PlannedCall, values_of
from .plannable import Plannable

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class Lowered:
    """Calls that fit as a draft decides: the draft with their programs, what they need together, and their dry run."""

    draft: Draft
    generation: Generation
    run: DryRun


def lowered(handle: Plannable, run: DryRun, base: Draft) -> Lowered | DoesNotFitError:
    """What comes of lowering the calls of a dry run as a draft decides: itself, and the pipeline, stay as they are.

    Where they do not fit with calls that take turns, they are placed by layers. The first refusal where they fit in no
    order; its ``alone`` is the component of which a program did not fit.
    """
    refused = _in_orders(handle, run, base)
    in_turn = base.copy()
    taking = [one for one in in_turn.decided.values() if takes_turns(one, run)]
    if isinstance(refused, Lowered) or not taking:
        return refused
    for one in taking:
        one.parts = 0
    found = _in_orders(handle, run, in_turn)
    if isinstance(found, DoesNotFitError):
        return refused
    names = ", ".join(one.component.name for one in taking)
    logger.warning("calls of %s do not take turns: %s", names, str(refused))
    return found


def _in_orders(handle: Plannable, run: DryRun, base: Draft) -> Lowered | DoesNotFitError:
    """Lowers calls in one order after another until they fit."""
    made = {key: base.decided[one.component.name].program_of(*key) for key, one in run.calls.items()}
    calls = [one for key, one in run.calls.items() if made[key] is None]
    first, *others = _orders(calls, base)
    refused = _lowered(handle, run, base.copy(), first)
    for order in others if isinstance(refused, DoesNotFitError) else ():
        found = _lowered(handle, run, base.copy(), order)
        if isinstance(found, Lowered):
            return found
    return refused


def _lowered(handle: Plannable, run: DryRun, draft: Draft, calls: Sequence[DryCall]) -> Lowered | DoesNotFitError:
    """Does that in an order, in a draft of its own."""
    refused = _refusal(handle, run, draft, calls)
    if refused is not None:
        return refused
    generation = _generation(handle, run, draft)
    refused = generation.refusal()
    if refused is not None:
        return refused
    for one in run.calls.values():
        draft.add_held(one.component.name, held_in(run, (one.call, one.key), handle.rig, draft.main))
    return Lowered(draft, generation, run)


def refusal_without(handle: Plannable, run: DryRun, base: Draft, names: Collection[str]) -> DoesNotFitError | None:
    """The first refusal where calls of a dry run fit in no order though those of some components are left out."""
    calls = [
        one
        for key, one in run.calls.items()
        if one.component.name not in names and base.decided[one.component.name].program_of(*key) is None
    ]
    refusals = [_refusal(handle, run, base.copy(), order) for order in _orders(calls, base)]
    return None if None in refusals else refusals[0]


def _refusal(handle: Plannable, run: DryRun, draft: Draft, calls: Sequence[DryCall]) -> DoesNotFitError | None:
    """The refusal of the first program that does not fit, of calls that are lowered into a draft in an order."""
    draft.is_lowering = True
    alone = ""
    try:
        for one in calls:
            alone = one.component.name
            _finish(handle, run, draft, one)
    except DoesNotFitError as error:
        error.alone = alone
        error.component = alone if error.own else ""
        return error.as_value()
    finally:
        draft.is_lowering, draft.now = False, None
    return None


def _finish(handle: Plannable, run: DryRun, draft: Draft, one: DryCall) -> None:
    """Makes the program of a call, and counts its values."""
    decided, key = draft.decided[one.component.name], (one.call, one.key)
    decided.parts = max(decided.parts, run.parts_of(one.component)) if decided.parts else 0
    held = draft.now = held_in(run, key, handle.rig, draft.main)
    there = decided.sites.main_of(one.call.module)
    one.traced.given = given_in(run, key, there, handle.rig, draft.main)
    compiled = one.component.compiler.finish(decided, one.call, one.key, one.traced)
    for program in compiled.lowered:
        draft.add_values(one.component.name, Counter(values_of(program)) + copied_in(compiled, program) + held)


def _generation(handle: Plannable, run: DryRun, draft: Draft) -> Generation:
    planned = {
        key: [
            PlannedCall(
                one.title,
                one.component.name,
                one.component.role,
                draft.plan.phases(one.component.name),
                program,
                list(pieces_of(draft.decided[one.component.name], one.call.module, program)),
                times,
                held_in(run, key, handle.rig, draft.main),
                type(one.component.module).__name__ if _is_by_parts(one.component) else "",
                copied_in(compiled, program),
            )
            for program, times in zip(compiled.lowered, times_in(run, key, len(compiled.lowered)), strict=True)
        ]
        for key, one in run.calls.items()
        if (compiled := draft.decided[one.component.name].program_of(one.call, one.key)) is not None
    }
    rigs = {name: one.plan.rig for name, one in draft.decided.items()}
    visits = list(visits_in(run, planned, handle.rig, draft.main))
    others = list(others_of(draft.decided.values()))
    calls = [call for each in planned.values() for call in each if call.times]
    generation = Generation(calls, rigs, draft.plan.request.granted, others, visits)
    generation.own, generation.skips = run.own, run.skips
    generation.turns = list(turns_in(run, planned))
    for name, decided in draft.decided.items():
        made = [decided.program_of(*key) for key, one in run.calls.items() if one.component is decided.component]
        why = kept_apart(decided, run, list(filter(None, made)))
        generation.apart |= {name: why} if why else {}
    return generation


def _is_by_parts(component: Component) -> bool:
    """Whether a component runs by its parts: it cannot be traced whole, or something in it runs as it is."""
    return bool(component.parts.reasons or component.sites.left)


def _orders(calls: Sequence[DryCall], draft: Draft) -> list[list[DryCall]]:
    """The orders in which calls are lowered, the one that is tried first before the others.

    Those on one device come first, of these the ones whose weights stay there, all or some, of these the largest. So a
    component that is too large is told by its own name, what comes and goes keeps as much as the others leave, and so
    does what is split. Where that does not fit, all that stays, all or some, comes before all that comes and goes, of
    which the smallest is first: a large one can make do with less than it would keep.
    """

    def comes(one: DryCall) -> bool:
        return draft.decided[one.component.name].plan.residency is not Residency.DEVICE

    def comes_whole(one: DryCall) -> bool:
        return comes(one) and not draft.decided[one.component.name].plan.amounts.on_device

    def turn(one: DryCall) -> tuple[bool, bool, bool, int]:
        is_split = len(draft.decided[one.component.name].plan.devices) > 1
        return is_split, comes(one), comes_whole(one), 0 if is_split else -one.component.view.nbytes

    first = sorted(calls, key=turn)
    second = sorted(first, key=lambda one: (comes_whole(one), one.component.view.nbytes if comes(one) else 0))
    return [first] if first == second else [first, second]
