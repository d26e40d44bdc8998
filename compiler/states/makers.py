"""New tensors like others, and tensors that are repeated: by any axis; what is repeated is split once each time."""

from __future__ import annotations

from collections.abc import Iterator

from torch.fx import Node

from ..ir.state import Split
from .strategy import (
    MOST_SEGMENTS,
    Local,
    Offers,
    Rule,
    Segments,
    Strategy,
    argument,
    divided,
    own_call,
    scaled,
    shape_of,
    shifted,
    splits,
    strategy,
)

LIKE = frozenset({"empty_like", "zeros_like", "ones_like", "full_like"})


def like(node: Node, offers: Offers) -> Iterator[Strategy]:
    """By any axis: what a device makes is like what it has."""
    operand = node.args[0]
    assert isinstance(operand, Node)
    for state in splits(offers, operand, node):
        yield strategy(state, {operand: state})


def interleaved(node: Node, offers: Offers) -> Iterator[Strategy]:
    """By any axis; of that which is repeated, a device has its elements as often as they are."""
    operand, given = node.args[0], argument(node, 2, "dim")
    assert isinstance(operand, Node)
    if given is None:
        return
    axis, times = given % len(shape_of(node)), int(argument(node, 1, "repeats"))
    for state in splits(offers, operand):
        yield strategy(Split(state.axis, scaled(state.segments, times if state.axis == axis else 1)), {operand: state})
    for state in splits(offers, node):
        segments = divided(state.segments, times) if state.axis == axis else state.segments
        if segments:
            yield strategy(state, {operand: Split(state.axis, segments)})


def local_interleaved(node: Node, chosen: Strategy, member: int) -> Local:
    """The size of the result is said for a whole one alone."""
    target, args, kwargs = own_call(node)
    return target, args[:3], {name: value for name, value in kwargs.items() if name != "output_size"}


def repeated(node: Node, offers: Offers) -> Iterator[Strategy]:
    """By any axis; the elements of one that is repeated are split alike each time."""
    operand, times = node.args[0], argument(node, 1, "repeats")
    assert isinstance(operand, Node)
    more = len(shape_of(node)) - len(shape_of(operand))
    found = {state: _again(state, times[state.axis + more], more) for state in splits(offers, operand)}
    for state in splits(offers, node):
        if state.axis >= more and times[state.axis] == 1:
            found[Split(state.axis - more, state.segments)] = state
    for state, result in found.items():
        if 0 < len(result.segments) <= MOST_SEGMENTS:
            yield strategy(result, {operand: state})


def _again(state: Split, times: int, more: int) -> Split:
    segments: Segments = tuple(one for at in range(times) for one in shifted(state.segments, at * state.size))
    return Split(state.axis + more, segments)


LIKES, INTERLEAVED, REPEATED = Rule(like), Rule(interleaved, local_interleaved), Rule(repeated)
