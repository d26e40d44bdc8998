"""Statistics of norms over an axis that is split: each device has those of its part, and those of all are combined.

A device's part of the statistics is one row of them, or several of which all but the first are of nothing. So all that
is exchanged for a norm is gathered at once, a few numbers of each device.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import accumulate, pairwise

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


def of_rows(node: Node, offers: Offers) -> Iterator[Strategy]:
    """By the axes before the last, and by that as parts."""
    x, parts = node.args[0], argument(node, 1, "parts")
    assert isinstance(x, Node)
    last = len(shape_of(x)) - 1
    wanted = [Split(state.axis - 1, state.segments) for state in splits(offers, node) if 0 < state.axis <= last]
    for state in dict.fromkeys([*splits(offers, x), *wanted]):
        result = _of_parts(state, parts) if state.axis == last else Split(state.axis + 1, state.segments)
        if result is not None:
            yield strategy(result, {x: state})


def of_groups(node: Node, offers: Offers) -> Iterator[Strategy]:
    """By pictures, by channels where no group is torn, and by the axes behind these as parts."""
    x, groups, parts = node.args[0], argument(node, 1, "groups"), argument(node, 2, "parts")
    assert isinstance(x, Node)
    for state in splits(offers, x):
        known = split_groups(state, shape_of(x)[1] // groups) if state.axis < 2 else _of_parts(state, parts)
        if known is not None:
            yield strategy(known, {x: state})


def split_groups(state: Split, channels: int) -> Split | None:
    """How statistics of groups are split where pictures or channels are; None where a group of channels is torn."""
    segments = divided(state.segments, channels) if state.axis else state.segments
    return Split(state.axis + 1, segments) if segments else None


def _of_parts(state: Split, parts: int) -> Split | None:
    """A part of the statistics for each device that has something, to the last the rest; None where there are fewer."""
    has = [int(state.length(member) > 0) for member in range(len(state.segments[0]))]
    if not 0 < sum(has) <= parts:
        return None
    has[max(at for at, one in enumerate(has) if one)] += parts - sum(has)
    return Split(0, (tuple(pairwise(accumulate(has, initial=0))),))


def local_of_rows(node: Node, chosen: Strategy, member: int) -> Local:
    """A device has so many of the parts."""
    return _with_parts(own_call(node), 1, chosen, member)


def local_of_groups(node: Node, chosen: Strategy, member: int) -> Local:
    """A device has so many of the parts, or so many groups as it has channels of."""
    return _with_parts(local_groups(node, chosen, member, 1), 2, chosen, member)


def local_groups(node: Node, chosen: Strategy, member: int, at: int) -> Local:
    """A call with so many groups as a device has channels of, by the place of that argument."""
    x, call = node.args[0], own_call(node)
    assert isinstance(x, Node)
    state = chosen.takes(x)
    if not isinstance(state, Split) or state.axis != 1:
        return call
    groups = max(1, state.length(member) * int(argument(node, at, "groups")) // shape_of(x)[1])
    return with_argument(call, at, "groups", groups)


def _with_parts(call: Local, at: int, chosen: Strategy, member: int) -> Local:
    (state,) = chosen.results
    if not isinstance(state, Split) or state.axis:
        return call
    return with_argument(call, at, "parts", state.length(member))


def combined(node: Node, offers: Offers) -> Iterator[Strategy]:
    """By rows, or groups, with all parts of these."""
    parts = node.args[0]
    assert isinstance(parts, Node)
    for state in splits(offers, parts, node):
        if 0 < state.axis < len(shape_of(parts)) - 1:
            yield strategy(state, {parts: state})


ROWS, GROUPS, COMBINED = Rule(of_rows, local_of_rows), Rule(of_groups, local_of_groups), Rule(combined)
