"""The outline of a program down to its operations, as many as there is room for.

Blocks that are alike are drawn once. Where all operations are too many, the blocks with most of them stay whole.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

from torch.fx import Node

from ...compiler.ir.program import Program, placement_of, tensors_of
from ..outline.grouping import by_block, place_of
from ..outline.outline import Outline, Part, assembled, folded_groups


def unfolded(program: Program, name: str, room: int) -> tuple[Outline, tuple[str, ...]]:
    """The outline with at most so many boxes of operations, and what was left whole, a sentence if anything was."""
    groups = by_block(program)
    parts, part_at = folded_groups(program, groups)
    opened = _opened(parts, room)
    boxes: list[Part] = []
    first: dict[int, int] = {}  # of each part, the number of its box, or of the first of its operations
    for part in parts:
        first[part.index] = len(boxes)
        new = _operations(program, part) if part.index in opened else [part]
        boxes += [replace(one, index=len(boxes) + offset) for offset, one in enumerate(new)]
    box_of = {
        node: first[part_at[place]] + (offset if part_at[place] in opened else 0)
        for place, group in enumerate(groups)
        for offset, node in enumerate(group.nodes)
    }
    whole = [part for part in parts if part.index not in opened]
    return assembled(program, name, boxes, box_of, flows=True), tuple(_note(name, whole))


def _opened(parts: Sequence[Part], room: int) -> frozenset[int]:
    """The parts that are drawn by their operations: the smallest ones, as many as there is room for."""
    found = set()
    for part in sorted(parts, key=lambda one: len(one.nodes)):
        room -= len(part.nodes)
        if room < 0:
            break
        found.add(part.index)
    return frozenset(found)


def _operations(program: Program, part: Part) -> Iterator[Part]:
    groups = {node: segment.group for segment in program.segments for node in segment.nodes}
    for node in part.nodes:
        weights = placement_of(node).weights
        label, within = (node.name, str(node.target), _type(node)), f"{part.index}: {part.title}"
        nbytes, where = program.nbytes_of(weights), place_of(program, groups[node])
        yield Part(0, where, 1, (), len(weights), nbytes, part.count, 0, (node,), label, within)


def _type(node: Node) -> str:
    shown = (f"{str(t.dtype).removeprefix('torch.')}[{', '.join(map(str, t.shape))}]" for t in tensors_of(node))
    return ", ".join(shown) or "number"


def _note(name: str, whole: Sequence[Part]) -> Iterator[str]:
    if whole:
        ops = sum(len(part.nodes) for part in whole)
        yield f"{name}: {ops} operations stay folded in {len(whole)} boxes, to keep the picture readable"
