"""The rules of what brings values to devices: transfers, and values that lie on several of them."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, replace

from torch.fx import Node

from ...compiler.ir.ops import REPLICATE, TRANSFER
from ...compiler.ir.program import HERE, MOVING, placement_of, value_of
from ...compiler.ir.split import gathers, members, reads_part, source_of, split_of
from ...compiler.ir.value import TensorType
from .snapshot import Snapshot, Violation


def moving(snapshot: Snapshot) -> Iterator[Violation]:
    """Transfers and replicas stand in cut programs alone, over values of their own kind, and are in no segment."""
    for node in snapshot.moving:
        is_right = _is_transfer(snapshot, node) if node.target is TRANSFER else _is_replica(snapshot, node)
        if "cut" not in snapshot.program.facts:
            yield Violation("moving", f"%{node.name} moves a value in a program that was not cut", node)
        elif not is_right or placement_of(node) != replace(placement_of(node), segment=None, weights=(), split=()):
            yield Violation("moving", f"%{node.name} = {node.target} does not bring its operands where it is", node)


def _is_transfer(snapshot: Snapshot, node: Node) -> bool:
    """Whether a transfer has a value of another device, or parts of its own, and yields its like in new memory."""
    if len(node.args) != 1 or not isinstance(node.args[0], Node) or node.kwargs != {"device": HERE}:
        return False
    value = node.args[0]
    kinds = value.meta.get("value"), node.meta.get("value")
    if not isinstance(kinds[0], TensorType) or not isinstance(kinds[1], TensorType) or value in snapshot.weights:
        return False
    is_elsewhere = snapshot.device[node] != snapshot.device[value]
    is_whole = value.target not in MOVING or gathers(value)
    return (
        is_whole
        and is_elsewhere != bool(split_of(value))
        and kinds[1] == replace(kinds[0], storage=kinds[1].storage)
        and kinds[1].storage not in snapshot.storages[value]
        and _stands_behind(snapshot, node, value)
    )


def _stands_behind(snapshot: Snapshot, node: Node, value: Node) -> bool:
    """Whether a transfer stands directly behind what makes its value, or writes its memory."""
    before = node.prev
    while before.target in MOVING:
        before = before.prev
    maker = source_of(value) if gathers(value) else value
    is_input = maker.op == before.op == "placeholder"
    return is_input or before is maker or not snapshot.writes.get(before, set()).isdisjoint(snapshot.storages[value])


def _is_replica(snapshot: Snapshot, node: Node) -> bool:
    """Whether a replica has copies of one value, each on another device, of which it is the first."""
    copies = snapshot.operands[node]
    if node.args != (copies,) or node.kwargs or len(copies) < 2 or value_of(node) != value_of(copies[0]):
        return False
    places = [snapshot.device[one] for one in copies]
    values = {one if one.target is not TRANSFER or gathers(one) else one.args[0] for one in copies}
    return len(values) == 1 and len(set(places)) == len(places) and places[0] == snapshot.device[node]


def transfers(snapshot: Snapshot) -> Iterator[Violation]:
    """Every node reads what lies on its device, in the content that it has by then; nothing is brought there twice."""
    walk = _Contents(snapshot)
    for place, node in enumerate(snapshot.nodes):
        problem = walk.brought(node, place) if node.target is TRANSFER else None
        problem = problem or next(walk.problems(node), None)
        if problem:
            yield Violation("transfers", f"%{node.name} {problem}", node)
        walk.written.update(dict.fromkeys(snapshot.writes.get(node, ()), (place, node)))
    for node in snapshot.moving:
        if not node.users:
            yield Violation("transfers", f"%{node.name} is read by nobody", node)


@dataclass
class _Contents:
    """The writes so far by the memory that they change, and what was brought where, with the memory it came from."""

    snapshot: Snapshot
    written: dict[int, tuple[int, Node]] = field(default_factory=dict)
    latest: dict[tuple[Node, int], int] = field(default_factory=dict)
    came: dict[int, tuple[int, Node]] = field(default_factory=dict)  # by the memory of what was brought

    def brought(self, node: Node, place: int) -> str | None:
        """Notes a transfer; says where the same content was brought to the same device before."""
        (value,) = self.snapshot.operands[node]
        key = value, self.snapshot.device[node]
        before = self.latest.get(key, -1)
        since = max((self.written[one][0] for one in self.snapshot.storages[value] if one in self.written), default=-1)
        self.latest[key] = place
        if not split_of(value):  # a whole that was gathered is no copy: the value itself is written there
            self.came.update(dict.fromkeys(self.snapshot.storages[node], (place, value)))
        if before > since:
            return f"brings %{value.name} to {self.snapshot.name(key[1])} once more"
        return None

    def problems(self, node: Node) -> Iterator[str]:
        """What a node reads that is not there, or not what it is by then, and what it writes that is a copy."""
        for value in self.snapshot.operands[node] if node.target not in MOVING else ():
            if value in self.snapshot.weights or not self.snapshot.storages.get(value):
                continue
            if not self.is_there(node, value):
                devices = " and ".join(map(str, members(self.snapshot.program, node)))
                yield f"reads %{value.name}, which is not on {devices}"
            for storage in {one for copy in self.copies(value) for one in self.snapshot.storages[copy]}:
                if storage in self.snapshot.writes.get(node, ()) and storage in self.came:
                    yield f"writes into %{value.name}, which is a copy"
                yield from self.outdated(value, storage)

    def copies(self, value: Node) -> list[Node]:
        """The copies of a value that lies on several devices, or the value."""
        return self.snapshot.operands[value] if value.target is REPLICATE else [value]

    def is_there(self, node: Node, value: Node) -> bool:
        """Whether a value lies on all devices that run a node, which takes its part of one that is split."""
        if split_of(value):
            return reads_part(node, value)
        there = [self.snapshot.device[one] for one in self.copies(value)]
        return sorted(there) == sorted(self.snapshot.place(one) for one in members(self.snapshot.program, node))

    def outdated(self, value: Node, storage: int) -> Iterator[str]:
        """The write that a copy in a piece of memory came too early for."""
        place, origin = self.came.get(storage, (0, None))
        for one in self.snapshot.storages[origin] if origin is not None else ():
            last, writer = self.written.get(one, (-1, None))
            if last > place and writer is not None:
                yield f"reads %{value.name}, which was brought before %{writer.name} wrote what it is a copy of"
