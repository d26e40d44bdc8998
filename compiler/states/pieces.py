"""What is cut up and put together: each device has of a piece what it has of the whole there."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import accumulate, islice, pairwise, product

import torch
from torch.fx import Node

from ..ir.program import tensors_of
from ..ir.slices import Bounds
from ..ir.state import PARTIAL, Split
from .strategy import (
    MOST_SEGMENTS,
    Local,
    Offers,
    Rule,
    Strategy,
    argument,
    divided,
    name_of,
    own_call,
    scaled,
    shape_of,
    shifted,
    splits,
    strategy,
    within,
)

CUTTING = frozenset({"chunk", "split", "split_with_sizes"})
JOINING = frozenset({"cat", "concat", "concatenate", "stack"})

_MANY = 32
"""So many ways to split the pieces of a joined axis are offered at most."""


def cut_up(node: Node, offers: Offers) -> Iterator[Strategy]:
    """The operand is split on another axis than that which is cut, or on that, or is terms of a sum."""
    operand, axis, count = node.args[0], _axis(node), len(tensors_of(node))
    assert isinstance(operand, Node)
    ends = [0, *accumulate(one.sizes[axis] for one in tensors_of(node))]
    others = [state for state in splits(offers, node) if state.axis != axis]
    for state in dict.fromkeys([*splits(offers, operand), *others]):
        found = (
            [within(state, start, stop) for start, stop in pairwise(ends)] if state.axis == axis else [state] * count
        )
        yield strategy(found, {operand: state})
    if PARTIAL in offers(operand):
        yield strategy([PARTIAL] * count, {operand: PARTIAL})


def local_cut(node: Node, chosen: Strategy, member: int) -> Local:
    """Pieces of the sizes that a device has of them."""
    axis, states = _axis(node), chosen.results
    if not any(isinstance(state, Split) and state.axis == axis for state in states):
        return own_call(node)
    sizes = [state.length(member) for state in states if isinstance(state, Split)]
    return torch.ops.aten.split_with_sizes.default, (node.args[0], sizes, axis), {}


def sliced(node: Node, offers: Offers) -> Iterator[Strategy]:
    """The operand is split on any axis; of one that is sliced in steps of one each device has what lies in there.

    Of one that is sliced in longer steps from end to end, each device has as many whole steps as of the operand.
    """
    operand, axis = node.args[0], _axis(node, 1, 0)
    assert isinstance(operand, Node)
    start, stop, step = _range(node)
    others = [state for state in splits(offers, node) if state.axis != axis]
    for state in dict.fromkeys([*splits(offers, operand), *others]):
        if state.axis != axis:
            yield strategy(state, {operand: state})
        elif step == 1 and start < stop:
            yield strategy(within(state, start, stop), {operand: state})
        elif _is_stepping(node) and (segments := divided(state.segments, step)):
            yield strategy(Split(axis, segments), {operand: state})
    for state in splits(offers, node):
        if state.axis == axis and _is_stepping(node):
            yield strategy(state, {operand: Split(axis, scaled(state.segments, step))})
    if PARTIAL in offers(operand):
        yield strategy(PARTIAL, {operand: PARTIAL})


def local_slice(node: Node, chosen: Strategy, member: int) -> Local:
    """The stretch of what a device has that lies within the slice."""
    operand, axis = node.args[0], _axis(node, 1, 0)
    assert isinstance(operand, Node)
    state, (start, stop, _) = chosen.takes(operand), _range(node)
    if not isinstance(state, Split) or state.axis != axis or _is_stepping(node):
        return own_call(node)
    before = within(state, 0, start).length(member) if start else 0
    length = within(state, start, stop).length(member)
    return torch.ops.aten.slice.Tensor, (operand, axis, before, before + length), {}


def _is_stepping(node: Node) -> bool:
    """Whether a slice takes one element of each of the steps that its operand's axis is made of."""
    size = shape_of(node.args[0])[_axis(node, 1, 0)]  # type: ignore[arg-type]
    start, stop, step = _range(node)
    return step > 1 and size % step == 0 and start < step and stop > size - step + start


def joined(node: Node, offers: Offers) -> Iterator[Strategy]:
    """All pieces are split alike on an axis; or, where they follow one another along it, each in its own way."""
    parts: Sequence[Node] = list(node.args[0])  # type: ignore[arg-type]
    axis, is_stacked = argument(node, 1, "dim", 0) % len(shape_of(node)), name_of(node) == "stack"
    alike: dict[Split, None] = {}
    for state in splits(offers, node):
        alike.update({state: None} if state.axis != axis else {})
    for one in parts:
        for state in splits(offers, one):
            at = state.axis + (is_stacked and state.axis >= axis)
            alike.update({Split(at, state.segments): None} if is_stacked or at != axis else {})
    for state in alike:
        at = state.axis - (is_stacked and state.axis > axis)
        yield strategy(state, dict.fromkeys(parts, Split(at, state.segments)))
    if not is_stacked:
        yield from _in_a_row(parts, axis, offers)
    if all(PARTIAL in offers(one) for one in parts):
        yield strategy(PARTIAL, dict.fromkeys(parts, PARTIAL))


def _in_a_row(parts: Sequence[Node], axis: int, offers: Offers) -> Iterator[Strategy]:
    each = [[state for state in splits(offers, one) if state.axis == axis] for one in dict.fromkeys(parts)]
    for chosen in islice(product(*each), _MANY):
        states = dict(zip(dict.fromkeys(parts), chosen, strict=True))
        at, segments = 0, list[Bounds]()
        for one in parts:
            segments += shifted(states[one].segments, at)
            at += shape_of(one)[axis]
        if len(segments) <= MOST_SEGMENTS:
            yield strategy(Split(axis, tuple(segments)), states)


def _axis(node: Node, at: int = 2, default: int = 0) -> int:
    return argument(node, at, "dim", default) % len(shape_of(node.args[0]))  # type: ignore[no-any-return, arg-type]


def _range(node: Node) -> tuple[int, int, int]:
    """Where a slice begins and ends, and its step."""
    size = shape_of(node.args[0])[_axis(node, 1, 0)]  # type: ignore[arg-type]
    start, stop, step = (argument(node, at, name) for at, name in ((2, "start"), (3, "end"), (4, "step")))
    return slice(start, stop, step).indices(size)


CUT, SLICE, JOIN = Rule(cut_up, local_cut), Rule(sliced, local_slice), Rule(joined)
