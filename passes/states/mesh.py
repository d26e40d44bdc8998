"""A mesh of two levels: groups of devices have some pictures of a call each, and compute these together.

The batch of a call is shared out over the groups first, which costs no exchange, and each group computes its pictures
under a mode of its own: ``batch+sequence`` is what others call guidance × sequence parallel. By itself each part is a
program of fewer pictures over fewer devices, in forms and states like any other. Side by side they are one program
again: the parts read the same inputs and weights, what is not of the pictures is computed in each, and at the end the
main device joins the pictures. That parts do not depend on one another is proven by `batches.division`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import zip_longest
from typing import Any

from torch.fx import Graph, Node

from ...compiler.ir.aliasing import writes
from ...compiler.ir.program import IN_PARTS, Program, tensors_of, value_of, weight_name
from ...compiler.ir.value import relocated
from ...compiler.spec.modes import inner_mode
from ...compiler.states.strategy import Strategy, name_of
from ...compiler.states.table import is_drawn
from ..batches.divide import write_parts
from ..batches.division import NotDivisible, division_of
from .exchanges import Group
from .forms import forms_of, narrowed
from .modes import picture_count
from .problem import Account, Change
from .solution import Groups, NotPossible, Solution


@dataclass(frozen=True)
class Part:
    """The pictures of one group: a program of them, the group, and where each of its nodes is in the whole."""

    program: Program
    group: Group
    places: Mapping[Node, Node]


@dataclass(frozen=True)
class Mesh:
    """A program of which each group of devices computes a part; what joins the parts is for the main device."""

    program: Program
    parts: tuple[Part, ...]
    joins: tuple[Node, ...]

    @property
    def groups(self) -> Groups:
        """The devices that compute each operation."""
        found = {node: part.group.devices for part in self.parts for node in part.places.values()}
        main = self.program.devices[:1]
        return {node: devices for node, devices in found.items() if node.op == "call_function"} | dict.fromkeys(
            self.joins, main
        )


def meshes_of(program: Program, mode: str, group: Group) -> list[Mesh] | NotPossible:
    """A program as a mesh, in each form that the mode within groups may have; the program stays as it is.

    Groups are of devices that follow one another, as many as there are in all others; there are as many groups as can
    have equally many pictures.
    """
    pictures = picture_count(program)
    count = group_count(len(group), pictures)
    if count < 2:
        return NotPossible(mode, _why_no_groups(len(group), pictures))
    form = narrowed(program)
    joins = _written_in_parts(form, count)
    if isinstance(joins, NotDivisible):
        return NotPossible(mode, joins.reason)
    groups = _groups(group, count)
    each = [
        list(forms_of(_only(form, joins, number, one), inner_mode(mode), one.shares))
        for number, one in enumerate(groups)
    ]
    return [_joined(form, joins, some, groups) for some in zip(*each, strict=False)]


def _written_in_parts(form: Program, count: int) -> list[Node] | NotDivisible:
    """Writes a form of a program in so many parts of as many pictures each; returns what joins them, or why not.

    What is not of the pictures will be computed once a group, so that it must neither write nor draw numbers.
    """
    division = division_of(form, count)
    if isinstance(division, NotDivisible):
        return division
    if division.count != count or division.size % count:
        return NotDivisible(f"of {division.size} pictures {count} groups have not as many each")
    alone = next((one for one in form.ops() if one not in division.ways and (writes(one) or is_drawn(one))), None)
    if alone is not None:
        return NotDivisible(f"%{alone.name} = {name_of(alone)} is for all of its pictures")
    is_joined = [one in division.ways for one in _results(form)]
    write_parts(form, division)
    form.facts -= {IN_PARTS}
    return [one for one, is_one in zip(_results(form), is_joined, strict=True) if is_one]


def of_parts(mesh: Mesh, each: Sequence[Solution], mode: str, group: Group) -> Solution:
    """The states of all parts as those of the whole, which takes as long as the part that takes longest."""
    ways, counts, changes = dict[Node, Strategy](), dict[Node, int](), list[Change]()
    before = 0
    for part, found in zip(mesh.parts, each, strict=True):
        own = found.of_copy({node.name: made for node, made in part.places.items()})
        ways |= own.strategies
        counts |= own.counts
        behind = len(group) - before - len(part.group)
        changes += [replace(one, sent=(0,) * before + one.sent + (0,) * behind) for one in own.account.changes]
        before += len(part.group)
    accounts, floors = [one.account for one in each], [one.floor for one in each if one.floor is not None]
    account = Account(
        max(one.seconds for one in accounts),
        tuple(changes),
        tuple(nbytes for one in accounts for nbytes in one.weights),
        tuple(nbytes for one in accounts for nbytes in one.alive),
    )
    return Solution(
        mode, ", ".join(dict.fromkeys(one.how for one in each)), group.shares, ways, counts, account,
        max(floors) if len(floors) == len(each) else None, group.has_short_terms, mesh.groups,
    )  # fmt: skip


def _results(program: Program) -> list[Any]:
    return list(program.output.args[0])  # type: ignore[arg-type]


def group_count(devices: int, pictures: int) -> int:
    """How many groups of two devices or more have as many devices and pictures as the others: the most; 1 for none."""
    return next((count for count in _counts(devices) if pictures % count == 0), 1)


def turn_count(devices: int, calls: int) -> int:
    """How many groups of as many devices, two or more, take turns with calls of one picture: at most as many as these.

    Where calls do not share out evenly some group makes one more; 1 where there are no several groups.
    """
    return next((count for count in _counts(devices) if count <= calls), 1)


def stretches(devices: int, count: int) -> list[slice]:
    """Where so many groups of as many devices lie among devices: each follows the one before it."""
    size = devices // count
    return [slice(at, at + size) for at in range(0, devices, size)]


def _counts(devices: int) -> list[int]:
    """How many groups of as many devices, two or more, there may be, the most first."""
    return [count for count in range(devices // 2, 1, -1) if devices % count == 0]


def _why_no_groups(devices: int, pictures: int) -> str:
    if not _counts(devices):
        return f"{devices} devices form no groups of two or more, of as many each: four do, or six"
    if pictures < 2:
        return "the inputs are of one picture"
    return f"{devices} devices form no groups of two or more of which each has as many of {pictures} pictures"


def _groups(group: Group, count: int) -> list[Group]:
    every = stretches(len(group), count)
    return [replace(group, devices=group.devices[one], shares=_some(group.shares[one])) for one in every]


def _some(shares: tuple[int, ...]) -> tuple[int, ...]:
    return shares if any(shares) else (1,) * len(shares)


def _only(form: Program, joins: Sequence[Node], number: int, group: Group) -> Program:
    """The part of one group of a program in parts, on the devices of the group."""
    part = form.copy()
    part.rig = form.rig.only(group.devices)
    names = {one.name for one in joins}
    for one in part.output.all_input_nodes:
        if one.name in names:
            part.output.replace_input_with(one, one.args[0][number])  # type: ignore[index, arg-type]
    for node in reversed(list(part.ops())):
        if not node.users:
            part.graph.erase_node(node)
        else:
            node.meta.pop("placement", None)
    return part


def _joined(form: Program, joins: Sequence[Node], parts: Sequence[Program], groups: Sequence[Group]) -> Mesh:
    """All parts side by side, block by block, so that no group waits until another one was issued all of a call."""
    writer = _Writer(form, parts)
    for runs in zip_longest(*map(_by_blocks, parts), fillvalue=()):
        for number, run in enumerate(runs):
            for node in run:
                writer.put(number, node)
    made = writer.joined(joins)
    places = zip(parts, groups, writer.places, strict=True)
    return Mesh(replace(form, graph=writer.graph), tuple(Part(*one) for one in places), made)


def _by_blocks(part: Program) -> Iterator[list[Node]]:
    """The operations of a part, up to where weights of another block are read, and so on."""
    block_of, current, run = part.block_of(), "", list[Node]()
    for node in part.ops():
        names = (block_of.get(weight_name(one) or "") for one in node.all_input_nodes)
        block = next(filter(None, names), current)
        if block != current and run:
            yield run
            run = []
        current = block
        run.append(node)
    yield run


@dataclass
class _Writer:
    """Puts the nodes of all parts into one graph, each part's memory apart from that of others."""

    form: Program
    parts: Sequence[Program]
    graph: Graph = field(default_factory=Graph)

    def __post_init__(self) -> None:
        given = [node for node in self.form.graph.nodes if node.op == "placeholder"]
        made = {node.name: self._copied(node, {}) for node in given}
        self.places: list[dict[Node, Node]] = [
            {node: made[node.name] for node in part.graph.nodes if node.op == "placeholder"} for part in self.parts
        ]
        shared = {tensor.storage for node in given for tensor in tensors_of(node)}
        self._memory: list[dict[int, int]] = [{one: one for one in shared} for _ in self.parts]
        self._next = max(shared, default=-1) + 1

    def put(self, number: int, node: Node) -> None:
        """Puts a node of a part behind all others."""
        places = self.places[number]
        made = self._copied(node, places)
        made.meta["value"] = relocated(value_of(node), self._moved(number, node))
        places[node] = made

    def _copied(self, node: Node, places: Mapping[Node, Node]) -> Node:
        made = self.graph.node_copy(node, places.__getitem__)
        if node.op == "placeholder":
            made.name = node.name  # which fx changes where it is a word of Python's own
        return made

    def _moved(self, number: int, node: Node) -> Mapping[int, int]:
        memory = self._memory[number]
        for tensor in tensors_of(node):
            if tensor.storage not in memory:
                memory[tensor.storage], self._next = self._next, self._next + 1
        return memory

    def joined(self, joins: Sequence[Node]) -> tuple[Node, ...]:
        """Writes what joins the parts, and the output; returns the former."""
        found = dict[Node, Node]()
        for one, *each in zip(_results(self.form), *map(_results, self.parts), strict=True):
            if isinstance(one, Node) and one not in found:
                own = [places[result] for places, result in zip(self.places, each, strict=True)]
                found[one] = self._join(one, own) if one in joins else own[0]
        output = self.graph.node_copy(self.form.output, found.__getitem__)
        output.meta = dict(self.form.output.meta)
        for part, places in zip(self.parts, self.places, strict=True):
            places[part.output] = output
        return tuple(dict.fromkeys(found[one] for one in joins))

    def _join(self, join: Node, own: Sequence[Node]) -> Node:
        made = self.graph.create_node("call_function", join.target, (list(own), *join.args[1:]), {}, join.name)
        (kind,) = tensors_of(join)
        made.meta = {**join.meta, "value": replace(kind, storage=self._next)}
        made.meta.pop("placement", None)
        self._next += 1
        return made
