"""Which nodes may change places with one another: regions of a segment, and what must come before what in one.

A region begins with a node that reads a weight of another block than the nodes before it, and ends before the next such
node, so that a block's weights are still read together and in their turn. What stands in front of the first operation
on a weight in a segment keeps its place, and the first region of a segment still begins with such an operation, so that
every node is where the weight consumed last is. An operation of a library of somebody's own, which may have effects
that no schema tells, keeps its place between two regions. A region has at most ``MOST`` nodes.

In a region these keep their order: an operation and what it reads; all that touches memory which is written; what is
computed over an operand and the others that touch that memory; all that draws random numbers or checks something.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import torch
from torch.fx import Node

from ...compiler.ir.aliasing import (
    Alias,
    alias_class,
    base_of,
    computes,
    overwrites,
    possible_memory,
    written_memory,
)
from ...compiler.ir.program import Program, Segment, placement_of
from ...compiler.ir.split import maker_of
from ..analysis.replicated import replicated_weights

MOST = 256
"""The most nodes of a region."""

_KNOWN = frozenset({"aten", "prims", "dovetail"})


@dataclass(frozen=True)
class Region:
    """Consecutive nodes that may change places; if there are nodes ``first``, one of them comes first."""

    nodes: tuple[Node, ...]
    first: frozenset[Node] = frozenset()


def regions(program: Program, *, of_groups: bool = False) -> Iterator[Region]:
    """The regions of all segments on one device, or of groups of them, that have more than two nodes, in order."""
    block_of = program.block_of()
    parameters = {name for name, weight in program.weights.items() if weight.kind == "parameter"}
    replicated = replicated_weights(program, program.home)

    def read(node: Node) -> tuple[str, ...]:
        names = placement_of(node).weights
        return tuple(
            dict.fromkeys(block_of.get(name, "") for name in names if name in parameters or name not in replicated)
        )

    def pins(node: Node) -> bool:
        """Whether a node decides where the nodes behind it are, as one that only views a weight does not."""
        names = placement_of(node).weights
        return not replicated.issuperset(names) and (computes(node.target) or base_of(node) is None)

    for segment in program.segments:
        pinned = False
        for nodes in _runs(segment, read) if (len(segment.group) > 1) == of_groups else ():
            start = 0 if pinned else next((at for at, node in enumerate(nodes) if pins(node)), len(nodes))
            first = frozenset() if pinned else frozenset(node for node in nodes if pins(node))
            pinned = pinned or start < len(nodes)
            for at in range(start, len(nodes), MOST):
                if len(nodes[at : at + MOST]) > 2:
                    yield Region(tuple(nodes[at : at + MOST]), first if at == start else frozenset())


def _runs(segment: Segment, read: Callable[[Node], tuple[str, ...]]) -> Iterator[list[Node]]:
    """The nodes from the first reading of a weight on, cut where another block's is read."""
    run: list[Node] = []
    block: tuple[str, ...] = ()
    for node in segment.nodes:
        if not (known := _is_known(node)) or read(node) not in ((), block):
            yield from [run] if run else []
            run, block = [], read(node) or block
        if known and block:
            run.append(node)
    yield from [run] if run else []


def _is_known(node: Node) -> bool:
    """Whether an operation has no effect that its schema does not tell."""
    return not isinstance(node.target, torch._ops.OpOverload) or node.target.namespace in _KNOWN


class Constraints:
    """What must come before what, by the memory of a program."""

    def __init__(self, program: Program) -> None:
        self._piece = possible_memory(program.graph.nodes)
        self._written = written_memory(self._piece)
        self._maker = {node: maker_of(node) for node in program.transfers()}

    def before(self, nodes: Sequence[Node]) -> tuple[tuple[int, ...], ...]:
        """For each of some consecutive nodes the numbers of those before it that must stay there."""
        numbers = {node: number for number, node in enumerate(nodes)}
        last: dict[object, int] = {}  # that touched written memory, or has an effect
        touching: dict[Node, list[int]] = {}
        found = []
        for number, node in enumerate(nodes):
            makers = (self._maker.get(one, one) for one in node.all_input_nodes)
            earlier = {numbers[one] for one in makers if one in numbers}
            pieces = {self._piece[one] for one in (node, *node.all_input_nodes)}
            for key in (*(pieces & self._written), *(("effect",) if _has_effect(node) else ())):
                earlier.update({last[key]} if key in last else ())
                last[key] = number
            if overwrites(node):
                earlier.update(touching.get(self._piece[node.args[0]], ()))  # type: ignore[index]
            for piece in pieces:
                touching.setdefault(piece, []).append(number)
            found.append(tuple(sorted(earlier)))
        return tuple(found)


def _has_effect(node: Node) -> bool:
    """Whether an operation draws random numbers, writes, or checks something."""
    if not isinstance(node.target, torch._ops.OpOverload):
        return False
    target = node.target
    draws = torch.Tag.nondeterministic_seeded in target.tags
    return draws or alias_class(target) is Alias.WRITE or "assert" in target.name() or "constrain" in target.name()
