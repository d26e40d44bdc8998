"""The rules of what brings values to devices: transfers and reshards, and of numbers, which nothing brings."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, replace

from torch.fx import Node

from ...compiler.devices.device import Device
from ...compiler.ir.numbers import numbers_read
from ...compiler.ir.ops import RESHARD
from ...compiler.ir.program import HERE, MOVING, Placement, device_of, placement_of, state_of
from ...compiler.ir.split import assembles, source_of, split_of
from ...compiler.ir.state import PARTIAL, WHOLE, Halo, Parted, State
from ...compiler.ir.value import TensorType, filled_stride
from ...compiler.states.parts import members
from .snapshot import Snapshot, Violation


def moving(snapshot: Snapshot) -> Iterator[Violation]:
    """What moves brings a value of its kind from elsewhere once it is cut, or gathers parts, and is in no segment."""
    first: dict[int, Node] = {}
    for node in snapshot.nodes if snapshot.moving else ():
        for storage in snapshot.storages[node]:
            first.setdefault(storage, node)
    for node in snapshot.moving:
        if not _is_moved(snapshot, node) or any(first[one] is not node for one in snapshot.storages[node]):
            yield Violation("moving", f"%{node.name} = {node.target} does not bring its operand where it is", node)
        elif "cut" not in snapshot.program.facts and not assembles(node):
            yield Violation("moving", f"%{node.name} moves a value in a program that was not cut", node)
        elif placement_of(node) != _place(node):
            yield Violation("moving", f"%{node.name} has a state on its devices, and its placement says more", node)


def _place(node: Node) -> Placement:
    """All that a placement may say of what moves a value: its devices, and of which parts it is put together there."""
    return Placement(placement_of(node).group, states=placement_of(node).states if split_of(node) else ())


def _is_moved(snapshot: Snapshot, node: Node) -> bool:
    """Whether a node brings a value to other devices, or gathers its parts, and yields its like in new memory."""
    if len(node.args) != 1 or not isinstance(node.args[0], Node) or node.kwargs != {"device": HERE}:
        return False
    value = node.args[0]
    kinds = value.meta.get("value"), node.meta.get("value")
    if not isinstance(kinds[0], TensorType) or not isinstance(kinds[1], TensorType) or value in snapshot.weights:
        return False
    group, source = placement_of(node).group, placement_of(value).group
    return (
        (value.target not in MOVING or assembles(value))
        and (assembles(node) or not set(group) <= set(source) or "cut" not in snapshot.program.facts)
        and (node.target is RESHARD or (not split_of(value) and len(group) == len(source) == 1))
        and list(group) == [device for device in snapshot.program.devices if device in group]
        and kinds[1] == _kind_of(node, kinds[0], kinds[1].storage)
        and _is_covered(node, kinds[1])
        and _stands_behind(snapshot, node, value)
    )


def _is_covered(node: Node, kind: TensorType) -> bool:
    """Whether what moves is neither a term nor a halo, and each element of a value that is split is of a device."""
    states, state, group = placement_of(node).states, state_of(node), placement_of(node).group
    given = state_of(source_of(node))
    if PARTIAL in (state, given) or isinstance(given, Halo) or len(states) > 1 or any(len(one) != 1 for one in states):
        return False
    if not isinstance(state, Parted):
        return True
    return state.axis < len(kind.shape) and state.covers(len(group), kind.shape[state.axis])


def _kind_of(node: Node, kind: TensorType, storage: int) -> TensorType:
    """What moving a value yields: its like in other memory; what is put together fills it."""
    found = replace(kind, storage=storage)
    return replace(found, stride=filled_stride(found)) if assembles(node) else found


def _stands_behind(snapshot: Snapshot, node: Node, value: Node) -> bool:
    """Whether a transfer stands directly behind what makes its value, or writes its memory."""
    before = node.prev
    while before.target in MOVING:
        before = before.prev
    maker = source_of(value) if assembles(value) else value
    is_input = maker.op == before.op == "placeholder"
    return is_input or before is maker or not snapshot.writes.get(before, set()).isdisjoint(snapshot.storages[value])


def transfers(snapshot: Snapshot) -> Iterator[Violation]:
    """Every node reads what lies on its device, in the content that it has by then; nothing is brought there twice."""
    walk = _Contents(snapshot)
    for place, node in enumerate(snapshot.nodes):
        problem = walk.brought(node, place) if node.target in MOVING else None
        problem = problem or next(walk.problems(node), None)
        if problem:
            yield Violation("transfers", f"%{node.name} {problem}", node)
        walk.written.update(dict.fromkeys(snapshot.writes.get(node, ()), (place, node)))
    for node in snapshot.moving:
        for device in _unread(snapshot, node):
            yield Violation("transfers", f"%{node.name} is read by nobody on {device}", node)


def _unread(snapshot: Snapshot, node: Node) -> list[Device]:
    """The devices to which something is brought that nobody reads there, nor brings on from there."""
    read = {device for user in node.users if user.target not in MOVING for device in members(snapshot.program, user)}
    read.update(placement_of(node).group[:1] if any(user.target in MOVING for user in node.users) else ())
    there = () if assembles(node) else placement_of(source_of(node)).group
    return [device for device in members(snapshot.program, node) if device not in read and device not in there]


@dataclass
class _Contents:
    """The writes so far by the memory that they change, and what was brought where, with the memory it came from."""

    snapshot: Snapshot
    written: dict[int, tuple[int, Node]] = field(default_factory=dict)
    latest: dict[tuple[Node, Device, State], int] = field(default_factory=dict)
    came: dict[int, tuple[int, Node]] = field(default_factory=dict)  # by the memory of what was brought

    def brought(self, node: Node, place: int) -> str | None:
        """Notes what moves a value; says where the same content was brought to the same device before."""
        (value,) = self.snapshot.operands[node]
        since = max((self.written[one][0] for one in self.snapshot.storages[value] if one in self.written), default=-1)
        problem = None
        for device in placement_of(node).group:
            if self.latest.get((value, device, state_of(node)), -1) > since:
                problem = f"brings %{value.name} to {device} once more"
            self.latest[value, device, state_of(node)] = place
        if not split_of(value):  # a whole that was gathered is no copy: the value itself is written there
            self.came.update(dict.fromkeys(self.snapshot.storages[node], (place, value)))
        return problem

    def problems(self, node: Node) -> Iterator[str]:
        """What a node reads that is not there, or not what it is by then, and what it writes that is a copy."""
        for value in self.snapshot.operands[node] if node.target not in MOVING else ():
            if value in self.snapshot.weights or not self.snapshot.storages.get(value):
                continue
            if not self.is_there(node, value):
                devices = " and ".join(map(str, members(self.snapshot.program, node)))
                yield f"reads %{value.name}, which is not on {devices}"
            for storage in self.snapshot.storages[value]:
                if storage in self.snapshot.writes.get(node, ()) and storage in self.came:
                    yield f"writes into %{value.name}, which is a copy"
                yield from self.outdated(value, storage)

    def is_there(self, node: Node, value: Node) -> bool:
        """Whether what a node reads of a value lies on all devices that run it; its state is for a rule of its own."""
        has = placement_of(value).group if state_of(value) == WHOLE else members(self.snapshot.program, value)
        return set(members(self.snapshot.program, node)) <= set(has)

    def outdated(self, value: Node, storage: int) -> Iterator[str]:
        """The write that a copy in a piece of memory came too early for."""
        place, origin = self.came.get(storage, (0, None))
        for one in self.snapshot.storages[origin] if origin is not None else ():
            last, writer = self.written.get(one, (-1, None))
            if last > place and writer is not None:
                yield f"reads %{value.name}, which was brought before %{writer.name} wrote what it is a copy of"


def numbers(snapshot: Snapshot) -> Iterator[Violation]:
    """A number that a process reads and another makes follows from the sizes of inputs, so that both compute it."""
    schedule = snapshot.program.schedule
    if schedule is None or all(device.is_of_here for device in snapshot.program.devices):
        return
    for process, found in numbers_read(schedule, lambda device: device.process).items():
        for node in found.sent:
            problem = f"%{node.name} is read out of a tensor on {device_of(node)}, and process {process} needs it too"
            yield Violation("numbers", problem, node)
