"""Matmuls: by rows and columns of their operands, and by what is summed over, which yields terms of a sum."""

from __future__ import annotations

from collections.abc import Iterator

from torch.fx import Node

from ..checkpoints.quantized_types import block_of
from ..ir.ops import LINEAR
from ..ir.state import PARTIAL, Split, State
from .strategy import (
    Local,
    Offers,
    Rule,
    Strategy,
    argument,
    divided,
    once,
    own_call,
    scaled,
    shape_of,
    splits,
    strategy,
    with_argument,
)

PACKED = next(one for one in LINEAR if "quantized" in str(one))


def linear(node: Node, offers: Offers) -> Iterator[Strategy]:
    """By tokens with the whole weight; by rows of the weight; by its columns, which gives terms of a sum.

    Of packed weights, whose columns lie in blocks, whole blocks.
    """
    x, weight, bias = node.args[0], node.args[1], argument(node, 2, "bias")
    assert isinstance(x, Node)
    last = len(shape_of(x)) - 1
    for state in splits(offers, x, node):
        if state.axis != last:
            yield strategy(state, {x: state})
    for state in splits(offers, node):
        if state.axis == last:
            rows = Split(0, state.segments)
            yield strategy(state, {weight: rows, bias: rows})
    for state in splits(offers, x):
        columns = _columns(node, state) if state.axis == last else None
        if columns:
            yield strategy(PARTIAL, {x: state, weight: columns})
    if PARTIAL in offers(x) and bias is None:
        yield strategy(PARTIAL, {x: PARTIAL})


def _columns(node: Node, state: Split) -> Split | None:
    """The columns of a weight that go with features; None where a block of a packed one is torn."""
    if node.target is not PACKED:
        return Split(1, state.segments)
    elements, nbytes = block_of(argument(node, 3, "quant"))
    blocks = divided(state.segments, elements)
    return Split(1, scaled(blocks, nbytes)) if blocks else None


def local_linear(node: Node, chosen: Strategy, member: int) -> Local:
    """Of terms of a sum one has the bias."""
    x, call = node.args[0], own_call(node)
    assert isinstance(x, Node)
    state = chosen.takes(x)
    if argument(node, 2, "bias") is None or not isinstance(state, Split) or chosen.results[0] != PARTIAL:
        return call
    return call if member == once(state) else with_argument(call, 2, "bias", None)


def matmul(node: Node, offers: Offers) -> Iterator[Strategy]:
    """By rows of the first operand, columns of the second, what is summed over, and axes of both before these."""
    first, second = node.args[:2]
    assert isinstance(first, Node)
    assert isinstance(second, Node)
    left, right, rank = len(shape_of(first)), len(shape_of(second)), len(shape_of(node))
    if left < 2 or right < 2:
        return
    for state in _offered(first, node, offers, left, rank):
        if state.axis == left - 2:
            yield strategy(Split(rank - 2, state.segments), {first: state})
        elif state.axis == left - 1:
            yield strategy(PARTIAL, {first: state, second: Split(right - 2, state.segments)})
        else:
            yield from _along(node, first, second, state)
    for state in _offered(second, node, offers, right, rank):
        if state.axis == right - 1:
            yield strategy(Split(rank - 1, state.segments), {second: state})
    if PARTIAL in offers(first) and second is not first:
        yield strategy(PARTIAL, {first: PARTIAL})


def _offered(operand: Node, node: Node, offers: Offers, rank: int, whole: int) -> Iterator[Split]:
    """The splits of an operand, and those of the result on its axes, the one that is summed over apart."""
    sizes, result = shape_of(operand), shape_of(node)
    found: dict[Split, None] = dict.fromkeys(splits(offers, operand))
    for state in splits(offers, node):
        axis = state.axis - (whole - rank)
        if axis >= 0 and sizes[axis] == result[state.axis]:
            found[Split(axis, state.segments)] = None
    yield from found


def _along(node: Node, first: Node, second: Node, state: Split) -> Iterator[Strategy]:
    """By an axis before the last two, which the other operand has too, or lacks, or has once."""
    axis = state.axis + len(shape_of(node)) - len(shape_of(first))
    other = axis - (len(shape_of(node)) - len(shape_of(second)))
    if shape_of(first)[state.axis] != shape_of(node)[axis]:
        return
    has = other >= 0 and shape_of(second)[other] == shape_of(node)[axis]
    taken: State | None = Split(other, state.segments) if has else None
    if first is not second or taken == state:
        yield strategy(Split(axis, state.segments), {first: state, second: taken})


RULE_LINEAR, RULE_MATMUL = Rule(linear, local_linear), Rule(matmul)
