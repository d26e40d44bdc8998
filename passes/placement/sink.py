"""Moves a node that reads no weight to the device of its only readers, where fewer bytes cross then.

What comes before the first weight of a block runs on the device of the block before (see ``pin``). Where a model widens
a value there (a condition cast to float32 in every block), the wide value would cross. Computed on the other side, it
crosses as it was, or not at all, because the narrow value crosses there for other readers anyway.

A node may move if it computes (its result is memory of its own), reads no weight, draws no random number, and if all
that is read of its result is read on one other device; its views go along. Nothing may write into its memory, and
nothing into what it reads between its old and its new place. A table counts as a weight here: it would need memory on
one more device. Results of the program stay, and so does everything in a program that is split by rows, whose parts are
sent in batches. Walking backwards lets chains sink. Takes time linear in the nodes and their operands.

The walk also takes views of weights, which cost nothing anywhere, directly in front of their first reader if it is on
their own device: in front of the first operation, where ``hoist`` leaves them, they would be a segment of their own.

The same ops read the same values on another device: it changes no bit.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter, defaultdict
from dataclasses import dataclass, field
from typing import ClassVar

import torch
from torch.fx import Node

from ...compiler.devices.device import Device
from ...compiler.ir.aliasing import Alias, alias_class, base_of, possible_memory, readings, written_by
from ...compiler.ir.program import Program, device_of, place_node, placement_of, tensors_of, weight_name
from ...compiler.ir.split import split_of
from ..analysis.memory_needs import arriving
from ..infra.base import Change, Pass

_PURE = ("aten", "prims")
"""Namespaces of ops that do nothing but yield their results, assertions and random draws apart."""


@dataclass(frozen=True)
class Sink(Pass):
    """Moves nodes without weights to their only readers, if fewer bytes cross then."""

    name: ClassVar[str] = "sink"
    keeps_values: ClassVar[bool] = True
    requires: ClassVar[frozenset[str]] = frozenset({"pinned"})
    refuses: ClassVar[frozenset[str]] = frozenset({"cut"})

    def run(self, program: Program) -> Change:
        """Walks the graph once, backwards."""
        by_rows = any(map(split_of, program.ops()))
        if by_rows or len({device_of(node) for node in program.ops()}) < 2:
            return Change(0, "nodes moved to their readers")
        return Change(_Walk(program).run(), "nodes moved to their readers")


@dataclass
class _Walk:
    """The state of one walk: where nodes stand now, and how often each version of a value is read on each device.

    ``place`` orders the nodes: a node that has moved has the number of the one that it stands in front of. ``front`` is
    the first of all that stand there.
    """

    program: Program
    place: dict[Node, tuple[int, int]] = field(default_factory=dict)
    front: dict[int, Node] = field(default_factory=dict)
    views: dict[Node, list[Node]] = field(default_factory=dict)  # a node that computes, with what lives where it lives
    root: dict[Node, Node] = field(default_factory=dict)
    written: dict[Node, list[int]] = field(default_factory=lambda: defaultdict(list))
    reads: dict[Node, list[tuple[Node, int]]] = field(default_factory=lambda: defaultdict(list))
    readers: Counter[tuple[Node, int, Device]] = field(default_factory=Counter)

    def __post_init__(self) -> None:
        self.memory = possible_memory(self.program.graph.nodes)
        for index, node in enumerate(self.program.graph.nodes):
            self.place[node] = (index, 0)
            self.front[index] = node
            base = base_of(node)
            self.root[node] = self.root[base] if base else node
            self.views.setdefault(self.root[node], []).append(node)
            for operand in written_by(node):
                self.written[self.memory[operand]].append(index)
        for reader, value, version in readings(self.program):
            self.reads[reader].append((value, version))
            self.readers[value, version, device_of(reader)] += 1

    def run(self) -> int:
        """How many nodes moved."""
        count = 0
        for node in reversed(list(self.program.ops())):
            if self.root[node] is node:
                count += self.sink(node)
            elif weight_name(self.root[node]) and self.interrupts(node):
                self.move(node)
                count += 1
        return count

    def sink(self, node: Node) -> int:
        """Moves a node with its views if it may move and that pays."""
        cluster = self.views[node]
        target = self.target(node, cluster)
        if target is None or not self.may_move(cluster, target) or self.saved(cluster, target) <= 0:
            return 0
        for one in reversed(cluster):
            for value, version in self.reads[one]:
                self.readers[value, version, device_of(one)] -= 1
                self.readers[value, version, target] += 1
            place_node(one, group=(target,))
            self.move(one)
        return len(cluster)

    def target(self, node: Node, cluster: list[Node]) -> Device | None:
        """The one other device on which all that a node makes is read; None if there is none, or it must stay."""
        if not _is_pure(node) or self.memory[node] in self.written:
            return None
        found: set[Device] = set()
        for one in cluster:
            if not one.users or placement_of(one).weights:
                return None
            outside = [user for user in one.users if self.root[user] is not node]
            if any(user.op == "output" or self.follows(user) for user in outside):
                return None
            found.update(map(device_of, outside))
        return found.pop() if len(found) == 1 and device_of(node) not in found else None

    def follows(self, node: Node) -> bool:
        """Whether a node lives where another one does, and so may move with that."""
        return self.root[node] is not node and alias_class(node.target) is not Alias.WRITE

    def may_move(self, cluster: list[Node], target: Device) -> bool:
        """Whether nothing is written meanwhile into what a node and its views read, and the target has the dtypes."""
        places: dict[Node, int] = {}
        for one in reversed(cluster):
            places[one] = min(places.get(user, self.place[user][0]) for user in one.users)
            if any(self.is_written(operand, self.place[one][0], places[one]) for operand in one.all_input_nodes):
                return False
        held = {*cluster, *(value for one in cluster for value, _ in self.reads[one])}
        names = {str(tensor.dtype).removeprefix("torch.") for one in held for tensor in tensors_of(one)}
        return names.isdisjoint(target.lacks)

    def is_written(self, node: Node, first: int, last: int) -> bool:
        """Whether something between two places writes into memory that a node may lie in."""
        writers = self.written.get(self.memory[node], ())
        return bisect_left(writers, first) != bisect_left(writers, last)

    def saved(self, cluster: list[Node], target: Device) -> int:
        """How many bytes fewer cross, at the least, when a node and its views are on another device."""
        here, inside = device_of(cluster[0]), set(cluster)
        saved = sum(_least_bytes(one) for one in cluster if not inside.issuperset(one.users))
        edges = Counter(edge for one in cluster for edge in self.reads[one] if edge[0] not in inside)
        for (value, version), count in edges.items():
            home = device_of(value)
            if home not in (here, target) and self.readers[value, version, here] == count:
                saved += _least_bytes(value)
            if home != target and not self.readers[value, version, target]:
                saved -= _most_bytes(value)
        return saved

    def interrupts(self, node: Node) -> bool:
        """Whether a view of a weight ends a run of nodes, and could begin that of its first reader."""
        first = min(node.users, key=self.place.__getitem__, default=None)
        if first is None or first.op == "output" or device_of(first) != device_of(node) or node.next is first:
            return False
        return device_of(node.next) != device_of(node) and self.may_move([node], device_of(node))

    def move(self, node: Node) -> None:
        """Moves a node in front of its first reader, and of what stands in front of that."""
        index = min(self.place[user] for user in node.users)[0]
        front = self.front[index]
        front.prepend(node)
        self.front[index], self.place[node] = node, (index, self.place[front][1] - 1)


def _is_pure(node: Node) -> bool:
    """Whether an op does nothing but to make tensors, and the same ones whenever it runs."""
    target = node.target
    if not isinstance(target, torch._ops.OpOverload) or target.namespace not in _PURE or not tensors_of(node):
        return False
    draws, checks = torch.Tag.nondeterministic_seeded in target.tags, "assert" in target.name()
    return alias_class(target) in (Alias.COMPUTE, Alias.MAYBE) and not draws and not checks


def _least_bytes(node: Node) -> int:
    """Bytes of a copy of a value, without the gaps of a view and without what repeats."""
    return sum(min(tensor.nbytes, arriving(tensor)) for tensor in tensors_of(node))


def _most_bytes(node: Node) -> int:
    """Bytes of a copy of a value, with the gaps of a view and what repeats."""
    return sum(max(tensor.nbytes, arriving(tensor)) for tensor in tensors_of(node))
