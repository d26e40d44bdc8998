"""The states in which values may be offered to operations, and all ways to compute these then.

First states are wanted, from the results of a program to its inputs: an attention wants heads and queries, a group norm
groups of channels, a matmul columns; what cuts an axis wants a segment for each piece, and what joins pieces wants each
of them to be split. What is wanted of a result is, by the rules, wanted of operands, with its unit: so many elements
are not torn. Nobody says where heads or pairs of rotary features are: a reshape takes a unit along.

Then states are offered, from inputs to results: what the rules yield of what operands are offered in, and of what is
wanted. Values that no parameter has a part in (positions, masks) are whole: there is nothing to gain. But patches of
inputs that are offered in states are not whole.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Container, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import accumulate, pairwise, zip_longest
from math import prod

from torch.fx import Node

from ...compiler.checkpoints.quantized_types import block_of
from ...compiler.ir.aliasing import Alias, alias_class, writers_of
from ...compiler.ir.program import tensors_of, weight_name
from ...compiler.ir.state import PARTIAL, WHOLE, Split, State
from ...compiler.states.convolutions import NAMES as CONVOLUTIONS
from ...compiler.states.matmuls import PACKED
from ...compiler.states.pieces import CUTTING, JOINING
from ...compiler.states.strategy import (
    MOST_SEGMENTS,
    Segments,
    Strategy,
    argument,
    is_dynamic,
    name_of,
    shape_of,
    shifted,
)
from ...compiler.states.table import strategies
from .exactness import FEWEST_ROWS
from .folding import Folded, Tensor, made_by
from .shares import cut_in_units

MATMULS = frozenset({"linear", "quantized_linear", "matmul", "bmm"})

QUERIES = 32
"""Rows of queries are cut on multiples of this, where there are so many for each device: kernels take them so."""

FEWEST_CHANNELS = 4
"""No device computes fewer channels of a convolution that has twice as many: kernels of so few are up to three times as
far from exact."""

MOST_WANTED = 3
"""So many ways to split an axis are wanted of a value at most."""

MOST_OFFERED = 4
"""So many ways to split an axis of a value are offered at most, of those that its operation yields."""

MOST_WAYS = 48
"""So many ways to compute an operation are considered at most."""

_ROUNDS = 2  # blocks of a chain read what equal ones make, which comes behind them in the graph

Wanted = Mapping[Split, int]
"""States that are wanted, each with the unit of its axis."""


@dataclass
class _Wants:
    """What is wanted of each tensor, as far as it was walked."""

    folded: Folded
    shares: Sequence[int]
    learned: frozenset[Node]
    found: dict[Tensor, dict[Split, int]] = field(default_factory=lambda: defaultdict(dict))

    def of(self, node: Node) -> dict[Split, int]:
        """What is wanted of the results of a node, together."""
        return {state: unit for at in range(len(tensors_of(node))) for state, unit in self.found[node, at].items()}

    def cut(self, axis: int, size: int, unit: int) -> Split:
        """An axis that is split in one segment."""
        return Split(axis, (cut_in_units(size, self.shares, unit),))

    def unit_of(self, axis: int, shape: Sequence[int]) -> int:
        """The unit of an axis of which nothing else is known: rows may be those of queries."""
        is_row = axis < len(shape) - 1
        return QUERIES if is_row and shape[axis] >= QUERIES * len(self.shares) else 1

    def want(self, tensor: Tensor, state: Split, unit: int) -> None:
        """Wants a state of a tensor, if that can be split and there are not many yet."""
        known, (node, at) = self.found[tensor], tensor
        if node not in self.learned or node.op != "call_function" or state.size < 2 or state in known:
            return
        alike = sum(one.axis == state.axis for one in known)
        if alike < MOST_WANTED and len(state.segments) <= MOST_SEGMENTS and len(tensors_of(node)) > at:
            known[state] = unit

    def pull(self, node: Node, operand: Node, state: Split, unit: int) -> None:
        """Wants a state of an operand, whatever it is read of."""
        for tensor in self.folded.sources.get((node, operand), ()):
            self.want(tensor, state, unit)


def wanted(folded: Folded, shares: Sequence[int]) -> Mapping[Tensor, Wanted]:
    """The states that are wanted of each tensor, each with its unit."""
    wants = _Wants(folded, shares, _learned(folded))
    for _ in range(_ROUNDS):
        for node in reversed(folded.nodes):
            if node in wants.learned:
                _want_results(wants, node)
                _want_operands(wants, node)
    return wants.found


def _learned(folded: Folded, inputs: Iterable[Node] = ()) -> frozenset[Node]:
    """The nodes in which parameters have a part, or some of the inputs."""
    found, program = set[Node](inputs), folded.program
    for node in program.graph.nodes:
        is_learned = weight_name(node) is not None and program.weight(node).kind == "parameter"
        if is_learned or not found.isdisjoint(node.all_input_nodes):
            found.add(node)
    return frozenset(found)


def _want_results(wants: _Wants, node: Node) -> None:
    """What an operation can yield by itself, by each of its axes of which nothing is wanted downstream."""
    axes = {state.axis for state in wants.of(node) if _is_wide(node, state)}
    for state, unit in _own(wants, node):
        if state.axis not in axes or name_of(node) == "scaled_dot_product_attention":
            wants.want((node, 0), state, unit)


def _own(wants: _Wants, node: Node) -> Iterator[tuple[Split, int]]:
    name, shape = name_of(node), shape_of(node) if tensors_of(node) else ()
    units: Mapping[int, int] = {}
    if name == "scaled_dot_product_attention":
        units = _units_of_attention(wants, node)
    elif name in MATMULS:
        units = {axis: wants.unit_of(axis, shape) for axis in range(len(shape))}
    elif name in CONVOLUTIONS:
        units = {0: 1, 1: shape[1] // int(argument(node, 6, "groups", 1))}
        few = FEWEST_CHANNELS if shape[1] >= 2 * FEWEST_CHANNELS else 1
        units = {**units, 1: few} if units[1] == shape[1] else units
    elif name == "group_norm":
        units = {0: 1, 1: shape[1] // argument(node, 1, "num_groups")}
    elif "embedding" in name:
        units = {axis: wants.unit_of(axis, shape) for axis in range(len(shape))}
    for axis, unit in units.items():
        yield wants.cut(axis, shape[axis], unit), unit


def _units_of_attention(wants: _Wants, node: Node) -> Mapping[int, int]:
    """Queries that read the same keys are not torn apart."""
    q, k = shape_of(node.args[0]), shape_of(node.args[1])  # type: ignore[arg-type]
    heads = {axis: q[axis] // k[axis] for axis in range(len(q) - 2) if k[axis]}
    return {**heads, len(q) - 2: wants.unit_of(len(q) - 2, q)}


def _want_operands(wants: _Wants, node: Node) -> None:
    """What is wanted of a node is wanted of its operands by the rules, and by axes along which it cuts or joins."""
    name, here = name_of(node), wants.of(node)
    if node.target is PACKED:
        _want_blocks(wants, node)
    if name in CUTTING:
        _want_pieces(wants, node)
    elif name == "slice":
        _want_slices(wants, node, here)
    elif name in JOINING:
        _want_parts(wants, node, here)
    for chosen in strategies(node, lambda one: here if one is node else ()) if here else ():
        result = chosen.results[0]
        for operand, state in chosen.operands.items():
            if isinstance(state, Split) and isinstance(result, Split):
                wants.pull(node, operand, state, _scaled_unit(here.get(result, 1), result, state))


def _scaled_unit(unit: int, of: Split, to: Split) -> int:
    """The unit of an axis each of whose elements are several of another's, or the other way round."""
    one, other = of.segments[0][-1][1], to.segments[0][-1][1]
    return max(1, unit * other // max(1, one))


def _want_blocks(wants: _Wants, node: Node) -> None:
    """Packed weights lie in blocks of columns."""
    x, quant = node.args[0], argument(node, 3, "quant")
    assert isinstance(x, Node)
    axis, (unit, _) = len(shape_of(x)) - 1, block_of(quant)
    wants.pull(node, x, wants.cut(axis, shape_of(x)[axis], unit), unit)


def _want_pieces(wants: _Wants, node: Node) -> None:
    """Of an axis that is cut, one segment for each piece, split as is wanted of the piece."""
    operand, sizes = node.args[0], [one.sizes for one in tensors_of(node)]
    assert isinstance(operand, Node)
    axis = argument(node, 2, "dim", 0) % len(shape_of(operand))
    each = [
        [(state, unit) for state, unit in wants.found[node, at].items() if state.axis == axis]
        for at in range(len(sizes))
    ]
    known = max(each, key=len)
    usual = known[0][1] if known else wants.unit_of(axis, shape_of(operand))
    others = [(wants.cut(axis, shape[axis], usual), usual) for shape in sizes]
    for ways in zip_longest(*(some or [other] for some, other in zip(each, others, strict=True))):
        chosen = [way or some[0] if some else other for way, some, other in zip(ways, each, others, strict=True)]
        wants.pull(node, operand, _in_a_row(axis, [state for state, _ in chosen]), usual)


def _want_slices(wants: _Wants, node: Node, here: Wanted) -> None:
    """Of an axis that is sliced, one segment for each piece that some slice takes, or that none does."""
    operand = node.args[0]
    assert isinstance(operand, Node)
    axis, size = argument(node, 1, "dim", 0) % len(shape_of(operand)), 0
    size = shape_of(operand)[axis]
    ends = sorted({0, size, *(end for one in operand.users for end in _ends_of(one, operand, axis))})
    own = _ends_of(node, operand, axis)
    if len(ends) == 2 or not own:
        return
    mine = [(state, unit) for state, unit in here.items() if state.axis == axis]
    usual = wants.unit_of(axis, shape_of(operand))
    for state, unit in mine or [(wants.cut(axis, own[1] - own[0], usual), usual)]:
        pieces = [state if pair == own else wants.cut(axis, pair[1] - pair[0], unit) for pair in pairwise(ends)]
        wants.pull(node, operand, _in_a_row(axis, pieces), unit)


def _ends_of(node: Node, operand: Node, axis: int) -> tuple[int, ...]:
    """Where a slice of an operand begins and ends along an axis, in steps of one; nothing for other nodes."""
    if name_of(node) != "slice" or node.args[0] is not operand:
        return ()
    start, stop, step = (argument(node, at, name) for at, name in ((2, "start"), (3, "end"), (4, "step")))
    if argument(node, 1, "dim", 0) % len(shape_of(operand)) != axis or step not in (None, 1):
        return ()
    return slice(start, stop).indices(shape_of(operand)[axis])[:2]


def _want_parts(wants: _Wants, node: Node, here: Wanted) -> None:
    """Of an axis along which parts are joined, each part is split by itself."""
    axis = argument(node, 1, "dim", 0) % len(shape_of(node))
    units = {unit for state, unit in here.items() if state.axis == axis}
    for one in dict.fromkeys(node.args[0]) if name_of(node) != "stack" else ():  # type: ignore[arg-type]
        for unit in sorted(units, reverse=True):
            wants.pull(node, one, wants.cut(axis, shape_of(one)[axis], unit), unit)


def _in_a_row(axis: int, pieces: Sequence[Split]) -> Split:
    starts = accumulate((piece.size for piece in pieces), initial=0)
    each: Iterator[Segments] = (shifted(piece.segments, at) for piece, at in zip(pieces, starts, strict=False))
    return Split(axis, tuple(one for segments in each for one in segments))


def ways(
    folded: Folded,
    shares: Sequence[int],
    given: Mapping[Node, Iterable[State]],
    wants: Mapping[Tensor, Wanted],
    from_inputs: bool = False,
) -> dict[Node, tuple[Strategy, ...]]:
    """All ways in which a group of devices may compute each operation; the first is that of wholes.

    What is computed whole for its few rows is offered in parts all the same: of what all devices have, each may read
    some.

    Args:
        given: states in which inputs are offered, besides whole.
        wants: states that are wanted of results.
        from_inputs: whether what is computed of those inputs alone is split too, and not only that of parameters.
    """
    open_to = _learned(folded, given if from_inputs else ()) | _passing(folded, given)
    offered = defaultdict[Tensor, dict[State, None]](dict)
    offered.update({(node, 0): dict.fromkeys(states) for node, states in given.items()})
    written, found = writers_of(folded.program).keys(), dict[Node, tuple[Strategy, ...]]()

    def offers(reader: Node, one: Node) -> list[State]:
        if one is reader:
            return [state for at in range(len(tensors_of(one))) for state in wants.get((one, at), ())]
        sources = folded.sources.get((reader, one), {made_by(one): ()})
        return list(dict.fromkeys(state for tensor in sources for state in offered[tensor]))

    for _ in range(_ROUNDS):
        for node in folded.nodes:
            every = dict.fromkeys(map(_Key, strategies(node, lambda one, at=node: offers(at, one))))  # type: ignore[misc]
            sound = [key.strategy for key in every if _is_sound(node, key.strategy, written)]
            sound = sound if node in open_to else sound[:1]
            found[node] = tuple([one for one in sound if _has_rows(node, one)][:MOST_WAYS])
            for chosen in (*found[node], *(one for one in sound if not _has_rows(node, one))):
                for at, state in enumerate(chosen.results):
                    _offer(offered[node, at], state)
    return found


def _passing(folded: Folded, given: Iterable[Node]) -> set[Node]:
    """The operations that but pass on what inputs hold that are offered in states: patches of them, or other dtypes."""
    found = set(given)
    for node in folded.nodes:
        is_passing = alias_class(node.target) in (Alias.VIEW, Alias.MAYBE)
        if is_passing and not found.isdisjoint(node.all_input_nodes):
            found.add(node)
    return found


def _offer(known: dict[State, None], state: State) -> None:
    """Offers a state besides others of which not many split the same axis."""
    alike = sum(isinstance(one, Split) and isinstance(state, Split) and one.axis == state.axis for one in known)
    if state != WHOLE and (alike < MOST_OFFERED or not isinstance(state, Split)):
        known[state] = None


class _Key:
    """A strategy as it is compared."""

    __slots__ = ("facts", "strategy")

    def __init__(self, strategy: Strategy) -> None:
        self.strategy, self.facts = strategy, (strategy.results, frozenset(strategy.operands.items()))

    def __hash__(self) -> int:
        return hash(self.facts)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Key) and self.facts == other.facts


def _is_sound(node: Node, chosen: Strategy, written: Container[int]) -> bool:
    """Whether no axis is split that differs from call to call, and no written memory is a term."""
    if any(isinstance(state, Split) and is_dynamic(node, state.axis) for state in chosen.results):
        return False
    return PARTIAL not in chosen.results or not any(one.storage in written for one in tensors_of(node))


def _has_rows(node: Node, chosen: Strategy) -> bool:
    """Whether each device that computes rows of a matmul, or channels of a convolution, computes several."""
    state, shape = chosen.results[0] if chosen.results else WHOLE, shape_of(node) if chosen.results else ()
    if name_of(node) in CONVOLUTIONS:
        return not isinstance(state, Split) or _is_wide(node, state)
    if name_of(node) not in MATMULS or not isinstance(state, Split) or state.axis == len(shape) - 1:
        return True
    others = prod(size for axis, size in enumerate(shape[:-1]) if axis != state.axis)
    if name_of(node) in ("matmul", "bmm"):
        others = 1 if state.axis == len(shape) - 2 else FEWEST_ROWS
    lengths = [state.length(member) for member in range(len(state.segments[0]))]
    return all(not length or length * others >= FEWEST_ROWS for length in lengths)


def _is_wide(node: Node, state: Split) -> bool:
    """Whether no device has but a few channels of a convolution that sums over all; of other operations, any part is.

    Where channels are in groups of their own, the kernel of a group is the same in parts.
    """
    of_groups = name_of(node) not in CONVOLUTIONS or int(argument(node, 6, "groups", 1)) > 1
    if of_groups or state.axis != 1 or state.size < 2 * FEWEST_CHANNELS:
        return True
    lengths = (state.length(member) for member in range(len(state.segments[0])))
    return all(not length or length >= FEWEST_CHANNELS for length in lengths)
