"""Changes the order of operations within a segment where fewer bytes are alive at once then.

A model's code computes a value where its author wrote it: a block whose feed-forward part is joined with attention at
the end holds the widest value while attention runs. Computed right before it is needed, that value never lies beside
what attention takes. The same operations read the same values: no bit changes.

It works on regions (`memory/regions.py`) one by one, and takes another order (`memory/ordering.py`) only where it has
counted that the peak is lower; else the traced order stays. What is counted is what a schedule holds: pieces of memory
from the first to the last node that touches them, and what an operation takes while it runs. Regions that look alike,
as the blocks of a model do, are ordered once. Must run on a cut program, after it is known what is computed in its
operand's memory. A program that devices compute together keeps its order.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import ClassVar

from torch.fx import Node

from ...compiler.ir.program import MOVING, Program, device_of, tensors_of, weight_name
from ...compiler.ir.split import source_of
from ..analysis.liveness import last_touches
from ..analysis.memory_needs import arriving, held_bytes
from ..analysis.scratch import apart_bytes, scratch_bytes
from ..infra.base import Change, Pass
from ..memory.order import moving, place_behind, put_behind, write_segments
from ..memory.ordering import Problem, better_order
from ..memory.regions import Constraints, Region, regions


@dataclass(frozen=True)
class Reorder(Pass):
    """Reorders nodes within segments so that fewer bytes are alive at once."""

    name: ClassVar[str] = "reorder"
    keeps_values: ClassVar[bool] = True
    requires: ClassVar[frozenset[str]] = frozenset({"cut"})
    refuses: ClassVar[frozenset[str]] = frozenset({"scheduled"})

    def run(self, program: Program) -> Change:
        """Orders region after region, then writes the new order into the graph and its segments."""
        if program.is_grouped:
            return Change(0, "nodes in another place, for devices compute them together")
        pieces, constraints, standing = _Pieces(program), Constraints(program), moving(program)
        known: dict[tuple[Problem, ...], list[int] | None] = {}
        moved = 0
        for region in regions(program):
            problems = pieces.problems(region, constraints.before(region.nodes))
            if problems not in known:
                known[problems] = better_order(*problems)
            order = known[problems]
            if order is not None:
                place_behind([region.nodes[number] for number in order], region.nodes[0].prev)
                moved += sum(number != place for place, number in enumerate(order))
        if moved:
            put_behind(standing)
            write_segments(program)
        return Change(moved, "nodes in another place")


class _Pieces:
    """The pieces of memory that the nodes of a program touch, each on the device of the node."""

    def __init__(self, program: Program) -> None:
        self.program = program
        self._of_weights = {tensor.storage for node in program.weight_nodes() for tensor in tensors_of(node)}
        self._inputs = {tensor.storage for node in program.inputs() for tensor in tensors_of(node)}
        self._sizes: dict[Hashable, int] = {}
        self._touches: dict[Node, dict[Hashable, None]] = {node: {} for node in program.graph.nodes}
        self._note_touches()
        self._place = {node: place for place, node in enumerate(program.graph.nodes)}
        self._first: dict[Hashable, int] = {}
        for node, touched in self._touches.items():
            for piece in touched:
                self._first.setdefault(piece, self._place[node])
        self._last = {
            piece: self._place[node]
            for piece, node in last_touches(program.graph.nodes, self._touches.__getitem__).items()
        }

    def _note_touches(self) -> None:
        for node in self.program.graph.nodes:
            if node.target in MOVING:
                continue
            if node.op != "output":
                self._note_value(node, node)
            for value in node.all_input_nodes:
                if value.target in MOVING:
                    self._note_arrived(node, value)
                elif not weight_name(value):
                    self._note_value(node, value)
        for node, before in moving(self.program):
            if before.op != "placeholder":
                self._note_value(before, source_of(node))

    def _note_arrived(self, node: Node, value: Node) -> None:
        for index, tensor in enumerate(tensors_of(value)):
            self._sizes[value, index] = arriving(tensor)
            self._touches[node][value, index] = None

    def _note_value(self, node: Node, value: Node) -> None:
        for tensor in tensors_of(value):
            if tensor.storage not in self._of_weights:
                self._sizes.setdefault(tensor.storage, held_bytes(value, tensor))
                self._touches[node][tensor.storage] = None

    def problems(self, region: Region, before: tuple[tuple[int, ...], ...]) -> tuple[Problem, ...]:
        """The problem of ordering a region, and the same where inputs stay with the caller and take nothing here.

        An order that is better in both does not depend on who holds inputs, which a plan for no machine cannot know.
        """
        nodes = region.nodes
        start, end = self._place[nodes[0]], self._place[nodes[-1]]
        numbers: dict[Hashable, int] = {}
        touches = tuple(
            tuple(numbers.setdefault(piece, len(numbers)) for piece in self._touches[node]) for node in nodes
        )
        problem = Problem(
            before,
            touches,
            tuple(self._extra(nodes)),
            tuple(self._sizes[piece] for piece in numbers),
            tuple(self._first[piece] < start or isinstance(piece, tuple) for piece in numbers),
            tuple(self._last[piece] > end for piece in numbers),
            tuple(number for number, node in enumerate(nodes) if node in region.first and not before[number]),
        )
        if self._inputs.isdisjoint(numbers):
            return (problem,)
        return problem, replace(problem, sizes=tuple(0 if p in self._inputs else self._sizes[p] for p in numbers))

    def _extra(self, nodes: Sequence[Node]) -> Iterator[int]:
        sites = ((node, device_of(node)) for node in nodes)
        return (scratch_bytes(self.program, *site) + apart_bytes(self.program, *site) for site in sites)
