"""Norms: by every axis over which no statistics are taken, and group norm by whole groups of channels.

Group norm by statistics that are values of their own (`statistics`) is split in space too.
"""

from __future__ import annotations

from collections.abc import Iterator

from torch.fx import Node

from ..ir.state import Split
from .statistics import local_groups, split_groups
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


def norm_by(node: Node, offers: Offers) -> Iterator[Strategy]:
    """By any axis: by pictures and whole groups with their statistics, by others with those of all."""
    x, known, weight, bias, count = node.args[:5]
    assert isinstance(x, Node)
    for state in splits(offers, x, node):
        given = split_groups(state, shape_of(x)[1] // int(count)) if state.axis < 2 else None  # type: ignore[arg-type]
        if given is not None or state.axis > 1:
            rows = Split(0, state.segments) if state.axis == 1 else None
            yield strategy(state, {x: state, known: given, weight: rows, bias: rows})


def local_norm_by(node: Node, chosen: Strategy, member: int) -> Local:
    """A device has so many groups as it has channels of."""
    return local_groups(node, chosen, member, 4)


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
BY_STATISTICS = Rule(norm_by, local_norm_by)
