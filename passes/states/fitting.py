"""Solves for states that fit: with as much room as devices have, and with less where the lowered program needs more."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from math import gcd

from torch.fx import Graph, Node

from ...compiler.devices.device import Device
from ...compiler.devices.speeds import Speeds, speeds_of
from ...compiler.errors import UsageError
from ...compiler.ir.program import Program, tensors_of
from ...compiler.ir.state import WHOLE
from ...compiler.states.strategy import Strategy
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
from .forms import forms_of
from .share import share
from .solution import NotPossible, Solution
from .solve import solve

_TRIES = 6  # of less room, each with what the one before turned out to need
_FINE = 16  # so many steps between the shares of devices that differ in speed
_FREE = 1e15  # bytes a second of links that are to cost nothing


@dataclass(frozen=True)
class Fitted:
    """States, what each device needs of memory under them, and how long one device takes if that is less.

    ``graph`` has the operations whose states they are: those of the program in one of its forms.
    """

    graph: Graph
    solution: Solution
    needs: Mapping[Device, Need]
    alone: float | None = None


def fitted(
    program: Program, mode: str, shares: Sequence[float] = (), headroom: int | None = None
) -> Fitted | NotPossible:
    """The first states that fit under a mode, or those that lack least; why there are none. Changes nothing."""
    reason = _why_not(program)
    if reason:
        return NotPossible(mode, reason)
    group, free = group_of(program, shares), program.rig.free
    each = [_fitted(form, group, mode, headroom) for form in forms_of(program, mode, group.shares)]
    fitting = [one for one in each if isinstance(one, Fitted)]
    if not fitting:
        return each[0]
    return min(fitting, key=lambda one: (max(0, excess(one.needs, free)), one.solution.account.seconds))


def quickest(program: Program, mode: str, shares: Sequence[float] = ()) -> Fitted | NotPossible:
    """The states of least seconds under a mode, whatever room devices have; why there are none. Changes nothing."""
    reason = _why_not(program)
    if reason:
        return NotPossible(mode, reason)
    group = group_of(program, shares)
    each = [_solved(form, group, mode) for form in forms_of(program, mode, group.shares)]
    fitting = [one for one in each if isinstance(one, Fitted)]
    return min(fitting, key=lambda one: one.solution.account.seconds) if fitting else each[0]


def seconds_of(program: Program, found: Fitted) -> float:
    """The seconds of a call of a program in states that were found, as they are solved for.

    States that are taken though one device alone is quicker were solved for as if exchanges cost nothing: theirs are by
    a schedule.
    """
    if found.alone is None:
        return found.solution.account.seconds
    form = replace(program, graph=found.graph)
    return seconds_of_states(form, found.solution)


def _fitted(program: Program, group: Group, mode: str, headroom: int | None) -> Fitted | NotPossible:
    """The first states of a form of a program that fit, or those that lack least."""
    free, best = program.rig.free, None
    room = [free[device] for device in group.devices]
    for _ in range(_TRIES):
        found = _solved(program, group, mode, room)
        if isinstance(found, NotPossible):
            return best or _without_room(program, group, mode, headroom, found)
        one = replace(found, needs=needs_of_states(program, found.solution, headroom))
        best = one if best is None or excess(one.needs, free) < excess(best.needs, free) else best
        over = {device: need.total - free[device] for device, need in one.needs.items()}
        if max(over.values()) <= 0:
            return best
        if mode != "tensor" and not min(room):
            break  # each device holds all weights, whatever is chosen
        room = [max(0, had - max(0, over[device])) for had, device in zip(room, group.devices, strict=True)]
    return best or NotPossible(mode, "no states fit")


def group_of(program: Program, shares: Sequence[float] = ()) -> Group:
    """The devices of a program with their shares: those that are given, else by what they compute a second."""
    if shares and (len(shares) > len(program.devices) or not sum(shares)):
        asked, there = ":".join(f"{one:g}" for one in shares), ", ".join(map(str, program.devices))
        raise UsageError(f"shares {asked} are not those of {there}: give one for each device, some more than nothing")
    speeds = speeds_of(program.rig)
    given = [round(1000 * one / sum(shares)) for one in shares] if shares else _by_speed(program, speeds)
    offers = [*given, *[0] * len(program.devices)][: len(program.devices)]
    least = gcd(*offers) or 1
    return Group(program.devices, tuple(one // least for one in offers), speeds)


def needs_of_states(program: Program, solution: Solution, headroom: int | None = None) -> dict[Device, Need]:
    """What each device of a program needs where all compute it in some states, by a schedule of a copy."""
    trial = _lowered(program, solution)
    needs = {
        device: Need(one.weights + one.staged, _values(one.values + one.scratch, headroom), node=one.node)
        for device, one in simulate(trial).items()
    }
    return with_others(trial, on_main(trial), needs)


def seconds_of_states(program: Program, solution: Solution) -> float:
    """The seconds of a call of a program in some states, by a schedule of a copy."""
    return timeline(_lowered(program, solution, Arrange()), speeds_of(program.rig)).seconds


def _lowered(program: Program, solution: Solution, *more: Pass) -> Program:
    """A copy of a program in some states, lowered after more passes."""
    trial = program.copy()
    names = {node.name: node for node in trial.graph.nodes}
    together(trial, {names[node.name]: _over(way, names) for node, way in solution.strategies.items()})
    steps: tuple[Pass, ...] = (Cut(), Reuse(), Reorder(), *more, Lower())
    for step in steps:
        step.run(trial)
    return trial


def together(program: Program, strategies: Mapping[Node, Strategy]) -> int:
    """Has all devices compute a program as strategies say; returns how many values change their state."""
    commit(program, on_main(program))
    Pin().run(program)
    return share(program, strategies.get)


def on_main(program: Program) -> Assignment:
    """The assignment of a program that all devices compute: its weights are at home on the main device."""
    return assigned_whole(dict.fromkeys(program.weights, program.main), program.residency)


def _values(nbytes: int, headroom: int | None) -> int:
    return nbytes if headroom is None else headroom


def _over(way: Strategy, names: Mapping[str, Node]) -> Strategy:
    """A strategy over the nodes of a copy."""
    return Strategy(way.results, {names[one.name]: state for one, state in way.operands.items()})


def _why_not(program: Program) -> str:
    """Why no states are solved for, if so."""
    if len(program.devices) == 1:
        return f"it has one device, {program.main}"
    return "its sizes are dynamic" if program.symbols else ""


def _solved(program: Program, group: Group, mode: str, room: Sequence[int] = ()) -> Fitted | NotPossible:
    """States under a mode; those that one takes where exchanges cost nothing, if splitting nothing takes least."""
    found = solve(program, group, mode, room=tuple(room))
    if isinstance(found, NotPossible) or _splits(found):
        return found if isinstance(found, NotPossible) else Fitted(program.graph, found, {})
    other = solve(program, _as_if_free(group), mode, room=tuple(room))
    if isinstance(other, NotPossible):
        return other
    if not _splits(other):
        return NotPossible(mode, "none of its operations can be split so, or devices have no shares in them")
    return Fitted(program.graph, other, {}, found.account.seconds)


def _without_room(
    program: Program, group: Group, mode: str, headroom: int | None, why: NotPossible
) -> Fitted | NotPossible:
    """The states that would be taken if there were room, by which it is said what is lacking."""
    found = _solved(program, group, mode)
    if isinstance(found, NotPossible):
        return why
    return replace(found, needs=needs_of_states(program, found.solution, headroom))


def _splits(solution: Solution) -> bool:
    return any(state != WHOLE for way in solution.strategies.values() for state in way.results)


def _as_if_free(group: Group) -> Group:
    """The same devices, where nothing takes time but work and memory traffic."""
    speeds = group.speeds
    devices = {one: replace(speed, launch=0.0, peer=_FREE, link=_FREE) for one, speed in speeds.devices.items()}
    return replace(group, speeds=replace(speeds, devices=devices, ways={}, roots={}), latency=0.0)


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
