"""Which values of a program are of the pictures of a call, and how: what micro-batches take apart.

The rules of states say what follows where the inputs are split along their batch. If every operation computes each part
of its result of that part of its operands alone, the parts do not depend on one another, and together they are what the
program computes. Nothing is taken for granted of a model: what no rule proves is not taken apart.
"""

from __future__ import annotations

import operator
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field

from torch.fx import Node

from ...compiler.ir.aliasing import writes, written_by
from ...compiler.ir.program import Program, origin_of, tensors_of, weight_name
from ...compiler.ir.slices import bounds_of
from ...compiler.ir.state import WHOLE, Split, State
from ...compiler.states.strategy import Strategy, name_of
from ...compiler.states.table import is_drawn, strategies


@dataclass(frozen=True)
class Division:
    """A program in parts: in which state each value is over them, and how each operation is computed.

    What is in neither is computed once, for all parts.
    """

    count: int
    size: int
    states: Mapping[Node, tuple[State, ...]]
    ways: Mapping[Node, Strategy]


@dataclass(frozen=True)
class NotDivisible:
    """Why a program is not computed in parts."""

    reason: str


def division_of(program: Program, count: int) -> Division | NotDivisible:
    """A program in so many parts, or in one a picture where there are fewer."""
    refused: NotDivisible | None = None
    if program.symbols:
        return NotDivisible("its sizes differ from call to call")
    for size in _sizes(program):
        found = _divided(program, size, min(count, size))
        if isinstance(found, Division):
            return found
        refused = refused or found
    return refused or NotDivisible("its inputs are of one picture")


def _sizes(program: Program) -> Iterator[int]:
    """How many pictures the inputs may be of, that of most inputs first; none where most are of one."""
    shapes = [tensors_of(node)[0].sizes for node in program.inputs() if tensors_of(node)]
    sizes = [size for size, _ in Counter(shape[0] for shape in shapes if len(shape) > 1).most_common()]
    if sizes and sizes[0] > 1:
        yield from (size for size in sizes if size > 1)


def _divided(program: Program, size: int, count: int) -> Division | NotDivisible:
    """What follows where the inputs of so many pictures are split.

    An input of which an operation takes several pictures together is left whole, if others are not: a model may read
    the positions of the first picture for all.
    """
    state = Split(0, (bounds_of(size, [1] * count),))
    inputs = {node for node in program.inputs() if tensors_of(node) and tensors_of(node)[0].shape[:1] == (size,)}
    first: NotDivisible | None = None
    while inputs:
        walk = _Walk(dict.fromkeys(inputs, (state,)))
        failed = next((node for node in program.ops() if walk.take(node)), None)
        found = walk.ended(program, size, count) if failed is None else _refused(failed)
        if isinstance(found, Division):
            return found
        first = first or found
        whole = _inputs_of(failed, inputs) if failed is not None else inputs
        inputs = inputs - whole if whole and whole < inputs else set()
    return first or NotDivisible("its inputs are of one picture")


def _refused(node: Node) -> NotDivisible:
    where = origin_of(node).source
    why = "takes several pictures together" if tensors_of(node) else "asks for the numbers of pictures"
    why = "writes, where it may be before or behind what parts read" if writes(node) else why
    return NotDivisible(f"%{node.name} = {name_of(node)}{f', from {where},' if where else ''} {why}")


def _inputs_of(node: Node, inputs: Collection[Node]) -> set[Node]:
    """Those of some inputs that an operation depends on."""
    seen, todo = {node}, [node]
    while todo:
        more = [one for one in todo.pop().all_input_nodes if one not in seen]
        seen.update(more)
        todo += more
    return seen.intersection(inputs)


@dataclass
class _Walk:
    """What is known of the values so far."""

    states: dict[Node, tuple[State, ...]]
    ways: dict[Node, Strategy] = field(default_factory=dict)
    read: set[int] = field(default_factory=set)  # the memory of what is whole and read by parts

    def take(self, node: Node) -> bool:
        """Notes how an operation is computed in parts; says whether it cannot be."""
        if self.states.keys().isdisjoint(node.all_input_nodes):
            return not self.read.isdisjoint(writes(node))  # no part knows when another one has read it
        if node.target is operator.getitem:
            several, at = node.args
            way: Strategy | None = Strategy(self.states[several][at : at + 1], {})  # type: ignore[index, operator]
        else:
            way = self._way(node)
        if way is None:
            return True
        self.ways[node], self.states[node] = way, way.results
        wholes = (one for one in node.all_input_nodes if one not in self.states and not weight_name(one))
        self.read |= {tensor.storage for one in wholes for tensor in tensors_of(one)}
        return False

    def _way(self, node: Node) -> Strategy | None:
        """The way in which a part of an operation is made of that part of its operands, and of wholes."""
        if is_drawn(node):
            return None
        fitting = [way for way in strategies(node, self._offers) if self._fits(node, way)]
        return min(fitting, key=self._narrowed, default=None)

    def _offers(self, node: Node) -> Iterable[State]:
        return self.states[node][:1] if node in self.states else ()

    def _fits(self, node: Node, way: Strategy) -> bool:
        if not way.results or not all(isinstance(state, Split) for state in way.results):
            return False
        return all(self._has(node, one, way.takes(one)) for one in node.all_input_nodes if tensors_of(one))

    def _has(self, node: Node, operand: Node, wanted: State) -> bool:
        """Whether an operand is there in a state, or can be taken so of the whole."""
        if operand in self.states or wanted == WHOLE:
            return self._state(operand) == wanted
        return isinstance(wanted, Split) and not weight_name(operand) and operand not in written_by(node)

    def _state(self, operand: Node) -> State:
        return self.states.get(operand, (WHOLE,))[0]

    def _narrowed(self, way: Strategy) -> int:
        return sum(one not in self.states for one in way.operands)

    def ended(self, program: Program, size: int, count: int) -> Division | NotDivisible:
        """The division, if results are of the pictures, and can be joined."""
        results = {one: self._state(one) for one in program.output.all_input_nodes if one in self.states}
        for one, state in results.items():
            if not isinstance(state, Split) or len(state.segments) > 1:
                return NotDivisible(f"the parts of its result %{one.name} do not follow one another")
        if self.ways.keys().isdisjoint(results):
            return NotDivisible("none of its results is computed of the pictures of its inputs")
        return Division(count, size, self.states, self.ways)
