"""Solves for states that fit: with as much room as devices have, and with less where the lowered program needs more."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from math import gcd

from torch.fx import Graph

from ...compiler.devices.device import Device
from ...compiler.devices.speeds import Speeds, speeds_of
from ...compiler.errors import UsageError
from ...compiler.ir.program import Program, tensors_of
from ...compiler.ir.state import WHOLE
from ...compiler.spec.modes import shares_out_weights
from ..analysis.memory_needs import Need
from ..infra.base import Pass
from ..lowering.lower import Lower
from ..placement.assignment import Assignment, assigned_whole, commit, excess, with_others
from ..placement.cut import Cut
from ..placement.pin import Pin
from ..rewrites.reorder import Reorder
from ..rewrites.reuse import Reuse
from ..simulate.memory import simulate
from ..simulate.timeline import timeline
from .arrange import Arrange
from .exchanges import Group
from .kept_forms import Form, MeshForm, forms_with_solvers
from .modes import Limits, why_not
from .share import share
from .solution import Decision, NotPossible, Solution
from .views import split_before_views

_TRIES = 6  # of less room, each with what the one before turned out to need
_FINE = 16  # so many steps between the shares of devices that differ in speed


@dataclass(frozen=True)
class Fitted:
    """States, what each device needs of memory under them, and how long one device takes if that is less.

    ``graph`` has the operations whose states they are: those of the program in one of its forms. ``seconds`` are those
    of a call by its schedule, where one device takes less by what is predicted of operations.
    """

    graph: Graph
    solution: Solution
    needs: Mapping[Device, Need]
    alone: float | None = None
    seconds: float = 0.0


def fitted(
    program: Program,
    mode: str,
    shares: Sequence[float] = (),
    headroom: int | None = None,
    has_short_terms: bool = False,
) -> Fitted | NotPossible:
    """The first states that fit under a mode, or those that lack least; why there are none. Changes nothing."""
    reason = _why_not(program)
    if reason:
        return NotPossible(mode, reason)
    group, free = group_of(program, shares, has_short_terms), program.rig.free
    forms = forms_with_solvers(program, mode, group)
    if isinstance(forms, NotPossible):
        return forms
    each = [_fitted(_Tries(form, program, headroom), group, mode) for form in forms]
    fitting = [one for one in each if isinstance(one, Fitted)]
    if not fitting:
        return each[0]
    best = min(fitting, key=lambda one: (max(0, excess(one.needs, free)), one.solution.account.seconds))
    return _of_a_copy(program, best)


def quickest(
    program: Program,
    mode: str,
    shares: Sequence[float] = (),
    *,
    solves: bool = True,
    room: Limits = (),
    has_short_terms: bool = False,
) -> Fitted | NotPossible:
    """The states of least seconds under a mode; why there are none. Changes nothing.

    They take as much as they take, or no more than devices have ``room`` for, by what is known before they are lowered.
    Without ``solves`` they are those of the best recipe, which is found in a part of the time.
    """
    reason = _why_not(program)
    if reason:
        return NotPossible(mode, reason)
    group = group_of(program, shares, has_short_terms)
    reason = why_not(program, group, mode)
    if reason:
        return NotPossible(mode, reason)
    forms = forms_with_solvers(program, mode, group)
    if isinstance(forms, NotPossible):
        return forms
    each = [_Tries(form, program).quickest(solves, room) for form in forms]
    fitting = [one for one in each if isinstance(one, Fitted)]
    return min(fitting, key=lambda one: one.solution.account.seconds) if fitting else each[0]


def seconds_of(program: Program, found: Fitted) -> float:
    """The seconds of a call of a program in states that were found, as they are solved for.

    States that are taken though one device alone is quicker were solved for as if exchanges cost nothing: theirs are by
    a schedule.
    """
    if found.alone is None:
        return found.solution.account.seconds
    return seconds_of_states(replace(program, graph=found.graph), found.solution.decision)


def _of_a_copy(program: Program, found: Fitted) -> Fitted:
    """The same of a graph of its own, which may be changed: that of a form may be asked for again."""
    copy = replace(program, graph=found.graph).copy()
    names = {node.name: node for node in copy.graph.nodes}
    return replace(found, graph=copy.graph, solution=found.solution.of_copy(names))


def _fitted(tries: _Tries, group: Group, mode: str) -> Fitted | NotPossible:
    """The first states of a form of a program that fit, or those that lack least."""
    free, best = tries.program.rig.free, None
    room = [free[device] for device in group.devices]
    for _ in range(_TRIES):
        one = tries.within(tuple(room))
        if isinstance(one, NotPossible):
            return best or tries.without_room(one)
        best = one if best is None or excess(one.needs, free) < excess(best.needs, free) else best
        over = {device: need.total - free[device] for device, need in one.needs.items()}
        if max(over.values()) <= 0:
            return best
        if not shares_out_weights(mode) and not min(room):
            break  # each device holds all weights, whatever is chosen
        room = [max(0, had - max(0, over[device])) for had, device in zip(room, group.devices, strict=True)]
    return best or NotPossible(mode, "no states fit")


class _Tries:
    """Solves a form of a program for one room after another, and lowers a copy in each states that are found, once."""

    def __init__(self, form: Form | MeshForm, program: Program, headroom: int | None = None) -> None:
        self.program = replace(program, graph=form.program.graph)
        self._form, self._headroom = form, headroom

    def within(self, room: Limits) -> Fitted | NotPossible:
        """The states for which there is room, with what devices need by a schedule, which may be more."""
        found = self._solved(room)
        if isinstance(found, NotPossible):
            return found
        solution, alone = found
        known, key = self._form.needs, (str(solution), alone, self._headroom, self._read_of_devices())
        if key not in known:
            known[key] = self._lowered(solution, alone)
        needs, seconds = known[key]
        return Fitted(self.program.graph, solution, needs, alone, seconds)

    def _read_of_devices(self) -> object:
        """What a schedule depends on beside the graph: where weights rest, and with some elsewhere what is free."""
        program = self.program
        places = tuple(program.residency.items()), program.keeps_staged, program.given
        memory = [(one, its.beside, its.free if program.residency else 0) for one, its in program.rig.memory.items()]
        return places, tuple(memory)

    def quickest(self, solves: bool, room: Limits) -> Fitted | NotPossible:
        """The states of least seconds, or of the best recipe, of which nothing is lowered."""
        if not solves:
            recipe = self._form.recipe()
            return recipe if isinstance(recipe, NotPossible) else Fitted(self.program.graph, recipe, {})
        found = self._solved(room)
        return found if isinstance(found, NotPossible) else Fitted(self.program.graph, found[0], {}, found[1])

    def without_room(self, why: NotPossible) -> Fitted | NotPossible:
        """The states that would be taken if there were room, by which it is said what is lacking."""
        found = self.within(())
        return why if isinstance(found, NotPossible) else found

    def _solved(self, room: Limits) -> tuple[Solution, float | None] | NotPossible:
        """States, and the seconds of one device if these are less.

        Where splitting nothing takes least, they are those that one takes where exchanges cost nothing.
        """
        found = self._form.solution(room)
        if isinstance(found, NotPossible):
            return found
        if _splits(found):
            return found, None
        other = self._form.solution(room, at_no_cost=True)
        if isinstance(other, NotPossible):
            return other
        if not _splits(other):
            reason = "none of its operations can be split so, or devices have no shares in them"
            return NotPossible(other.mode, reason)
        return other, found.account.seconds

    def _lowered(self, solution: Solution, alone: float | None) -> tuple[Mapping[Device, Need], float]:
        """What states take by the schedule of a copy: the needs of devices, and seconds where these are asked for."""
        needs = needs_of_states(self.program, solution.decision, self._headroom)
        return needs, 0.0 if alone is None else seconds_of_states(self.program, solution.decision)


def group_of(program: Program, shares: Sequence[float] = (), has_short_terms: bool = False) -> Group:
    """The devices of a program with their shares: those that are given, else by what they compute a second."""
    if shares and (len(shares) > len(program.devices) or not sum(shares)):
        asked, there = ":".join(f"{one:g}" for one in shares), ", ".join(map(str, program.devices))
        raise UsageError(f"shares {asked} are not those of {there}: give one for each device, some more than nothing")
    speeds = speeds_of(program.rig)
    given = [round(1000 * one / sum(shares)) for one in shares] if shares else _by_speed(program, speeds)
    offers = [*given, *[0] * len(program.devices)][: len(program.devices)]
    least = gcd(*offers) or 1
    return Group(program.devices, tuple(one // least for one in offers), speeds, has_short_terms)


def needs_of_states(program: Program, decision: Decision, headroom: int | None = None) -> dict[Device, Need]:
    """What each device of a program needs where all compute it in some states, by a schedule of a copy."""
    trial = _in_states(program, decision)
    needs = {
        device: Need(one.weights + one.staged, _values(one.values + one.scratch, headroom), node=one.node)
        for device, one in simulate(trial).items()
    }
    return with_others(trial, on_main(trial), needs)


def seconds_of_states(program: Program, decision: Decision) -> float:
    """The seconds of a call of a program in some states, by a schedule of a copy."""
    return timeline(_in_states(program, decision, Arrange()), speeds_of(program.rig)).seconds


def _in_states(program: Program, decision: Decision, *more: Pass) -> Program:
    """A copy of a program in some states, lowered after more passes."""
    trial = program.copy()
    together(trial, decision.of_copy({node.name: node for node in trial.graph.nodes}))
    steps: tuple[Pass, ...] = (Cut(), Reuse(), Reorder(), *more, Lower())
    for step in steps:
        step.run(trial)
    return trial


def together(program: Program, decision: Decision) -> int:
    """Has all devices compute a program as was decided; returns how many values change their state."""
    commit(program, on_main(program))
    Pin().run(program)
    strategies = split_before_views(program, decision)
    return share(program, strategies.get, decision.has_short_terms, decision.groups)


def on_main(program: Program) -> Assignment:
    """The assignment of a program that all devices compute: its weights are at home on the main device."""
    return assigned_whole(dict.fromkeys(program.weights, program.main), program.residency)


def _values(nbytes: int, headroom: int | None) -> int:
    return nbytes if headroom is None else headroom


def _why_not(program: Program) -> str:
    """Why no states are solved for, if so."""
    if len(program.devices) == 1:
        return f"it has one device, {program.main}"
    return "its sizes are dynamic" if program.symbols else ""


def _splits(solution: Solution) -> bool:
    return any(state != WHOLE for way in solution.strategies.values() for state in way.results)


def _by_speed(program: Program, speeds: Speeds) -> list[int]:
    """Shares in proportion to the operations a second of devices, in the dtype of most bytes of the weights."""
    nbytes: dict[str, int] = {}
    for node in program.weight_nodes():
        for tensor in tensors_of(node):
            name = str(tensor.dtype).removeprefix("torch.")
            nbytes[name] = nbytes.get(name, 0) + tensor.nbytes
    dtype = max(nbytes, key=nbytes.__getitem__, default="float32")
    rates = [speeds[device].rate(dtype) for device in program.devices]
    return [max(1, round(_FINE * rate / max(rates))) for rate in rates]
