"""Puts nodes of a cut program in another order, with what brings values to devices behind what makes these."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise

from torch.fx import Node

from ...compiler.ir.program import MOVING, Program


def place_behind(nodes: Sequence[Node], behind: Node) -> None:
    """Puts nodes behind another one, in their order."""
    for one, following in pairwise((behind, *nodes)):
        if one.next is not following:
            one.append(following)


def moving(program: Program) -> list[tuple[Node, Node]]:
    """What brings values to devices, each with the operation behind which it stands."""
    found: list[tuple[Node, Node]] = []
    before = program.graph._root
    for node in program.graph.nodes:
        if node.target in MOVING:
            found.append((node, before))
        else:
            before = node
    return found


def put_behind(standing: Sequence[tuple[Node, Node]]) -> None:
    """Puts each behind its operation again, in their order."""
    for node, before in reversed(standing):
        before.append(node)


def write_segments(program: Program) -> None:
    """Gives the segments their nodes in the order of the graph."""
    nodes = program.ops()
    program.segments = tuple(
        replace(segment, nodes=tuple(next(nodes) for _ in segment.nodes)) for segment in program.segments
    )
