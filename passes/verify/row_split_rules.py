"""The rules of a row split: what slices a weight is in, and what may be done with the parts that they yield."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from itertools import pairwise

from torch.fx import Node

from ...compiler.ir.ops import GATHER
from ...compiler.ir.program import Weight, tensors_of
from ..analysis.eligibility import LINEAR
from ..analysis.pointwise import is_number, is_pointwise
from .snapshot import Snapshot, Violation

Rows = tuple[int, int]


def slices(snapshot: Snapshot) -> Iterator[Violation]:
    """Slices of a weight follow each other from its first row on, each at home on a device of its own."""
    home = snapshot.program.home
    held: dict[str, list[tuple[Rows, Node, Weight]]] = defaultdict(list)
    for node, weight in snapshot.weights.items():
        if weight.rows:
            held[weight.whole].append((weight.rows, node, weight))
    for name, pieces in held.items():
        rows = sorted(one for one, _, _ in pieces)
        ends = [0, *(stop for _, stop in rows)]
        homes = {home.get(weight.name) for _, _, weight in pieces}
        if [start for start, _ in rows] != ends[:-1] or len(homes) < len(pieces):
            said = ", ".join(sorted(f"{one} on {home.get(weight.name)}" for one, _, weight in pieces))
            yield Violation("slices", f"the rows of {name} are {said}: some are missing, or there twice", pieces[0][1])


def parts(snapshot: Snapshot) -> Iterator[Violation]:
    """A slice is only multiplied by, with its bias; its parts stay with their like until they are gathered in order."""
    rows: dict[Node, Rows] = {node: weight.rows for node, weight in snapshot.weights.items() if weight.rows}
    for node in snapshot.ops if rows else ():
        read = {operand: rows[operand] for operand in snapshot.operands[node] if operand in rows}
        if not read:
            continue
        if node.target == GATHER:
            yield from _gathered(node, rows)
        elif _stays_apart(snapshot, node, read):
            rows[node] = next(iter(read.values()))
        else:
            said = ", ".join(f"{start}:{stop} of %{operand.name}" for operand, (start, stop) in read.items())
            yield Violation("parts", f"%{node.name} reads {said}, and would need the whole, or the same rows", node)


def _stays_apart(snapshot: Snapshot, node: Node, read: dict[Node, Rows]) -> bool:
    """Whether a node yields the rows that it reads: a matmul on a slice, or an elementwise operation on parts."""
    if len(set(read.values())) > 1:
        return False
    others = [operand for operand in snapshot.operands[node] if operand not in read]
    if node.target in LINEAR:
        return node.args[1] in read and node.args[0] not in read and others in ([node.args[0]], [])
    sliced = any(operand in snapshot.weights for operand in read)
    return not sliced and is_pointwise(node.target, node.kwargs) and all(map(is_number, others))


def _gathered(node: Node, rows: dict[Node, Rows]) -> Iterator[Violation]:
    """What is wrong with the parts of a gather: they must follow each other, from the first column to the last."""
    given = [rows.get(part, (0, 0)) for part in node.args[1]]  # type: ignore[arg-type, union-attr]
    ends = [(0, 0), *given, (tensors_of(node)[0].shape[-1], 0)]
    if any(one[1] != other[0] for one, other in pairwise(ends)):
        said = ", ".join(f"{start}:{stop}" for start, stop in given)
        yield Violation("parts", f"%{node.name} puts together {said}, and has {ends[-1][0]} columns", node)
