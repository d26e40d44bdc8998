"""The rule of the verifier that says what micro-batches have to do with one another: nothing, until they are joined."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence

import torch
from torch.fx import Node

from ...compiler.ir.program import IN_PARTS, MOVING, part_of, tensors_of
from ...compiler.ir.split import original
from .snapshot import Snapshot, Violation

aten = torch.ops.aten
_Range = tuple[int, int, int]
"""Where a part of a whole begins and ends, and its number."""


def parts(snapshot: Snapshot) -> Iterator[Violation]:
    """A micro-batch reads what is its own or of no part; each is given its part of inputs, and gives it to results."""
    first = next((node for node in snapshot.nodes if part_of(node) is not None), None)
    numbers = {part for node in snapshot.nodes if (part := part_of(node)) is not None}
    count = len(numbers)
    if numbers != set(range(count)) or (count > 0) != (IN_PARTS in snapshot.program.facts):
        said = f"there are the micro-batches {sorted(numbers) or 'none'}, its facts say otherwise"
        yield Violation("parts", said, first)
    taken: dict[tuple[Node, int], list[_Range]] = defaultdict(list)
    for node in snapshot.nodes if count else ():
        if node.target in MOVING:
            continue
        given = [original(one) for one in node.all_input_nodes]
        own, read = part_of(node), {part for one in given if (part := part_of(one)) is not None}
        if own is not None and not read <= {own}:
            others = ", ".join(map(str, sorted(read - {own})))
            yield Violation("parts", f"%{node.name} is of micro-batch {own} and reads values of {others}", node)
        elif own is None and read and not _joins(node, given, count):
            yield Violation("parts", f"%{node.name} reads micro-batches, and does not join all of them in order", node)
        elif own is not None and not read and node.target is aten.slice.Tensor:
            _, axis, start, stop = node.args
            taken[given[0], axis].append((start, stop, own))  # type: ignore[arg-type, index]
    for (value, axis), ranges in taken.items():
        if not _are_parts(sorted(ranges), tensors_of(value)[0].sizes[axis], count):
            yield Violation("parts", f"the micro-batches do not share out %{value.name} along axis {axis}", value)


def _joins(node: Node, given: Sequence[Node], count: int) -> bool:
    """Whether a node puts all parts behind one another."""
    return node.target is aten.cat.default and [part_of(one) for one in given] == list(range(count))


def _are_parts(ranges: Sequence[_Range], size: int, count: int) -> bool:
    """Whether ranges reach over an axis, and follow one another as the parts do, once or several times."""
    reached = 0
    for start, stop, _ in ranges:
        if start > reached:
            return False
        reached = max(reached, stop)
    is_once = sum(stop - start for start, stop, _ in ranges) == size
    return reached == size and (not is_once or all(part == at % count for at, (_, _, part) in enumerate(ranges)))
