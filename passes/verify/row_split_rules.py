"""The rules of a row split: what slices a weight is in, and which operations are split over devices."""

from __future__ import annotations

from collections.abc import Iterator

from torch.fx import Node

from ...compiler.ir.ops import LINEAR
from ...compiler.ir.program import MOVING, placement_of, tensors_of
from ...compiler.ir.slices import cover
from ...compiler.ir.split import split_of, state_of
from ...compiler.ir.state import WHOLE
from ..analysis.pointwise import is_number, is_pointwise
from .snapshot import Snapshot, Violation


def slices(snapshot: Snapshot) -> Iterator[Violation]:
    """The rows of a weight that is split are in a range for each device, one after another, all of them."""
    program = snapshot.program
    nodes = {weight.name: node for node, weight in snapshot.weights.items()}
    for name, bounds in program.bounds.items():
        rows = program.weights[name].shape[0] if name in program.weights and program.weights[name].shape else 0
        if len(bounds) != len(program.devices) or not cover(bounds, rows):
            said = ", ".join(f"{start}:{stop}" for start, stop in bounds)
            yield Violation("slices", f"the rows of {name} are in the ranges {said} of {rows}", nodes.get(name))


def split(snapshot: Snapshot) -> Iterator[Violation]:
    """A split operation multiplies a whole by slices of weights, or is elementwise on parts of equal columns."""
    for node in snapshot.nodes:
        group, state = placement_of(node).group, state_of(node)
        if node.target in MOVING or (len(group) < 2 and state == WHOLE):
            continue
        goes_on = _multiplies if node.target in LINEAR else _goes_on
        if not _covers(snapshot, node) or not goes_on(snapshot, node):
            yield Violation("split", f"%{node.name} cannot be done {state} on {'+'.join(map(str, group))}", node)


def _covers(snapshot: Snapshot, node: Node) -> bool:
    """Whether an operation has one result, of whose last axis each device of the program has a range."""
    split, devices = split_of(node), snapshot.program.devices
    if split is None or len(placement_of(node).states) > 1 or len(split.segments) > 1:
        return False
    shape = values[0].shape if node.op == "call_function" and len(values := tensors_of(node)) == 1 else ()
    is_last = bool(shape) and split.axis == len(shape) - 1 and placement_of(node).group == devices
    return is_last and split.covers(len(devices), shape[-1])


def states(snapshot: Snapshot) -> Iterator[Violation]:
    """Values that lie in one piece of memory have one state."""
    if not any(placement_of(node).states for node in snapshot.ops):
        return
    first: dict[int, Node] = {}
    for node in snapshot.nodes:
        for storage in snapshot.storages.get(node, ()):
            other = first.setdefault(storage, node)
            if state_of(other) != state_of(node):
                both = f"%{node.name} is {state_of(node)}, %{other.name} {state_of(other)}"
                yield Violation("states", f"{both}, and both lie in the memory ~{storage}", node)


def _multiplies(snapshot: Snapshot, node: Node) -> bool:
    """Whether a matmul reads a whole, and a weight and a bias that are sliced as its result is split."""
    operand, *held = snapshot.operands[node]
    known, split = snapshot.program.bounds, split_of(node)
    sliced = all(one in snapshot.weights and (known.get(snapshot.weights[one].name),) == split.segments for one in held)  # type: ignore[union-attr]
    return node.args[0] is operand and not split_of(operand) and node.args[1] in held and sliced


def _goes_on(snapshot: Snapshot, node: Node) -> bool:
    """Whether an operation takes parts of the columns and sizes that it yields, and numbers beside them."""
    parts = [one for one in snapshot.operands[node] if split_of(one)]
    others = [one for one in snapshot.operands[node] if not split_of(one)]
    shapes = {tensor.shape for one in (node, *parts) for tensor in tensors_of(one)}
    alike = len(shapes) == 1 and all(split_of(one) == split_of(node) for one in parts)
    return bool(parts) and alike and is_pointwise(node.target, node.kwargs) and all(map(is_number, others))
