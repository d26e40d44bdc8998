"""The forms of a program with what solves for their states: while one plan is made, equal programs share them.

A plan is made of many attempts: a search asks what a group of devices takes, what is lowered then asks for states of
the same program on the same devices, and so do ways out of a refusal, with other bytes free. What is built to solve for
states depends on none of that. Programs are compared by all that solving reads; nothing is kept outside of `kept`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

from torch.fx import Node

from ...compiler.devices.device import Device
from ...compiler.ir.program import Program
from ...compiler.spec.modes import inner_mode
from ..analysis.memory_needs import Need
from .exchanges import Group
from .forms import forms_of
from .mesh import Mesh, meshes_of, of_parts, stretches
from .modes import Limits
from .solution import NotPossible, Solution
from .solve import Solver, solver_of

_MOST = 6
"""So many programs are kept; what solves for the states of a large one takes tens of megabytes."""

_FREE = 1e15  # bytes a second of links that are to cost nothing

_KEPT: ContextVar[list[_Kept] | None] = ContextVar("dovetail states", default=None)


@dataclass
class Form:
    """A form of a program, what solves for its states, and what was found of these so far.

    ``solved`` has the states by the room that devices have, ``needs`` what devices need in some states, by all that
    this depends on. The program stays as it is.
    """

    program: Program
    solver: Solver
    solved: dict[tuple[bool, Limits], Solution | NotPossible] = field(default_factory=dict)
    needs: dict[object, tuple[Mapping[Device, Need], float]] = field(default_factory=dict)

    def solution(self, room: Limits, at_no_cost: bool = False) -> Solution | NotPossible:
        """The states for which there is room; of a group whose exchanges cost nothing, if asked."""
        key = at_no_cost, room
        if key not in self.solved:
            self.solved[key] = (self._at_no_cost if at_no_cost else self.solver).solved(room)
        return self.solved[key]

    def recipe(self) -> Solution | NotPossible:
        """The best recipe, of which nothing is solved for."""
        return self.solver.recipe()

    @cached_property
    def _at_no_cost(self) -> Solver:
        return self.solver.over(_as_if_free(self.solver.posed.problem.group))


@dataclass
class MeshForm:
    """The same of a program in groups: each solves for its own part, and groups that are alike have equal states."""

    mesh: Mesh
    mode: str
    group: Group
    needs: dict[object, tuple[Mapping[Device, Need], float]] = field(default_factory=dict)
    parts: dict[int, Form] = field(default_factory=dict)

    def part(self, number: int) -> Form:
        """The form of a part; what solves for its states is built where these are not those of the first part."""
        if number not in self.parts:
            one = self.mesh.parts[number]
            self.parts[number] = Form(one.program, solver_of(one.program, one.group, inner_mode(self.mode)))
        return self.parts[number]

    @property
    def program(self) -> Program:
        """All parts, side by side."""
        return self.mesh.program

    def solution(self, room: Limits, at_no_cost: bool = False) -> Solution | NotPossible:
        """The states of all parts for which there is room."""
        rooms = [room[one] for one in stretches(len(self.group), len(self.mesh.parts))]
        return self._together(rooms, lambda number: self.part(number).solution(rooms[number], at_no_cost))

    def recipe(self) -> Solution | NotPossible:
        """The best recipe of each part, of which nothing is solved for."""
        rooms: list[Limits] = [()] * len(self.mesh.parts)
        return self._together(rooms, lambda number: self.part(number).recipe())

    def _together(
        self, rooms: Sequence[Limits], solve: Callable[[int], Solution | NotPossible]
    ) -> Solution | NotPossible:
        """The states of all parts; those of one that is like the first are the first's."""
        each: list[Solution] = []
        for number, room in enumerate(rooms):
            like = self._like_first(number, each[0]) if number and room == rooms[0] else None
            found = like or solve(number)
            if isinstance(found, NotPossible):
                return NotPossible(self.mode, found.reason)
            each.append(found)
        return of_parts(self.mesh, each, self.mode, self.group)

    def _like_first(self, number: int, first: Solution) -> Solution | None:
        """The states of the first part for another one that is like it, on devices that are like its own."""
        one, other = self.mesh.parts[0], self.mesh.parts[number]
        if not _are_alike(one.group, other.group):
            return None
        pairs = [*zip(one.program.graph.nodes, other.program.graph.nodes, strict=False)]
        if len(one.program.graph.nodes) != len(other.program.graph.nodes):
            return None
        if any(mine.target != its.target and mine.op == "call_function" for mine, its in pairs):
            return None
        return first.of_copy({mine.name: its for mine, its in pairs})


def _are_alike(one: Group, other: Group) -> bool:
    """Whether groups have the same shares, speeds and ways."""
    speeds = one.speeds
    mine, its = ([speeds[device] for device in group.devices] for group in (one, other))
    return one.shares == other.shares and mine == its and _ways(one) == _ways(other)


def _ways(group: Group) -> object:
    """The rates between the devices of a group, and which of them go the same way."""
    lanes: dict[str, int] = {}
    return [
        (pair, rate, [lanes.setdefault(one, len(lanes)) for one in taken])
        for pair, (rate, taken) in group.rates.items()
    ]


@dataclass(frozen=True)
class _Kept:
    """The forms of a program under a mode."""

    program: Program
    mode: str
    group: Group
    forms: Sequence[Form | MeshForm] | NotPossible


@contextmanager
def kept() -> Iterator[None]:
    """Has equal programs share their forms meanwhile."""
    token = _KEPT.set([])
    try:
        yield
    finally:
        _KEPT.reset(token)


def forms_with_solvers(program: Program, mode: str, group: Group) -> Sequence[Form | MeshForm] | NotPossible:
    """The forms of a program that a mode has, each with what solves for its states; none of them is to be changed.

    There are none of a mode of two levels that has no groups; why is returned in their place.
    """
    known = _KEPT.get()
    for one in known or ():
        if (one.mode, one.group) == (mode, group) and _are_equal(one.program, program):
            return one.forms
    forms = _forms(program, mode, group)
    if known is not None:
        known.append(_Kept(replace(program), mode, group, forms))  # its graph stays as it is: states are of a copy
        del known[:-_MOST]
    return forms


def _forms(program: Program, mode: str, group: Group) -> Sequence[Form | MeshForm] | NotPossible:
    if not inner_mode(mode):
        return [Form(form, solver_of(form, group, mode)) for form in forms_of(program, mode, group.shares)]
    meshes = meshes_of(program, mode, group)
    return meshes if isinstance(meshes, NotPossible) else [MeshForm(one, mode, group) for one in meshes]


def _are_equal(one: Program, other: Program) -> bool:
    """Whether two programs have the same operations of the same blocks over the same weights, under the same names."""
    if (one.name, one.blocks, one.symbols) != (other.name, other.blocks, other.symbols):
        return False
    mine, theirs = one.graph.nodes, other.graph.nodes
    return (
        len(mine) == len(theirs)
        and one.weights == other.weights
        and all(_is_alike(node, like) for node, like in zip(mine, theirs, strict=True))
    )


def _is_alike(node: Node, like: Node) -> bool:
    if node.name != like.name or node.op != like.op or node.target != like.target:
        return False
    if node.meta != like.meta or not _is_same(node.meta, like.meta):
        return False
    return _is_same(node.args, like.args) and _is_same(node.kwargs, like.kwargs)


def _is_same(one: Any, other: Any) -> bool:
    """Whether arguments are equal, nodes by their names."""
    if isinstance(one, Node):
        return isinstance(other, Node) and one.name == other.name
    if isinstance(one, (tuple, list)):
        return isinstance(other, (tuple, list)) and len(one) == len(other) and all(map(_is_same, one, other))
    if isinstance(one, dict):
        return (
            isinstance(other, dict) and one.keys() == other.keys() and all(_is_same(one[at], other[at]) for at in one)
        )
    if isinstance(one, (float, complex)):
        return type(one) is type(other) and repr(one) == repr(other)  # 0.0 equals -0.0
    return type(one) is type(other) and bool(one == other)


def _as_if_free(group: Group) -> Group:
    """The same devices, where nothing takes time but work and memory traffic."""
    speeds = group.speeds
    devices = {one: replace(speed, launch=0.0, peer=_FREE, link=_FREE) for one, speed in speeds.devices.items()}
    return replace(group, speeds=replace(speeds, devices=devices, ways={}, networks={}, roots={}, latency=0.0))
