"""Norms: by every axis over which no statistics are taken, and group norm by whole groups of channels."""

from __future__ import annotations

from collections.abc import Iterator

from torch.fx import Node

from ..ir.state import Split
from .strategy import (
    Local,
    Offers,
    Rule,
    Strategy,
    argument,
    divided,
    own_call,
    shape_of,
    splits,
    strategy,
    with_argument,
)


def layer_norm(node: Node, offers: Offers) -> Iterator[Strategy]:
    """By the axes before those that are normalized."""
    x = node.args[0]
    assert isinstance(x, Node)
    before = len(shape_of(x)) - len(argument(node, 1, "normalized_shape"))
    for state in splits(offers, x, node):
        if state.axis < before:
            yield strategy(state, {x: state})


def group_norm(node: Node, offers: Offers) -> Iterator[Strategy]:
    """By pictures of a batch, and by channels where no group is torn."""
    x, count = node.args[0], argument(node, 1, "num_groups")
    assert isinstance(x, Node)
    for state in splits(offers, x, node):
        if state.axis == 0:
            yield strategy(state, {x: state})
        elif state.axis == 1 and divided(state.segments, shape_of(x)[1] // count):
            rows = Split(0, state.segments)
            weights = {argument(node, 2, "weight"): rows, argument(node, 3, "bias"): rows}
            yield strategy(state, {x: state, **weights})


def local_group_norm(node: Node, chosen: Strategy, member: int) -> Local:
    """A device has so many groups as it has channels of."""
    state, call = chosen.results[0], own_call(node)
    if not isinstance(state, Split) or state.axis != 1:
        return call
    channels, count = shape_of(node)[1], argument(node, 1, "num_groups")
    return with_argument(call, 1, "num_groups", max(1, state.length(member) * count // channels))


def batch_norm(node: Node, offers: Offers) -> Iterator[Strategy]:
    """By any axis, with known statistics."""
    x = node.args[0]
    assert isinstance(x, Node)
    if argument(node, 5, "training"):
        return
    for state in splits(offers, x, node):
        rows = Split(0, state.segments) if state.axis == 1 else None
        yield strategy(state, {x: state, **dict.fromkeys(node.args[1:5], rows)})


LAYER, GROUP, BATCH = Rule(layer_norm), Rule(group_norm, local_group_norm), Rule(batch_norm)
