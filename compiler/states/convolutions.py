"""Convolutions, padding and resampling: by pictures of a batch, and by channels."""

from __future__ import annotations

from collections.abc import Iterator

from torch.fx import Node

from ..ir.state import PARTIAL, Split
from .strategy import (
    Local,
    Offers,
    Rule,
    Strategy,
    argument,
    divided,
    name_of,
    once,
    own_call,
    scaled,
    shape_of,
    splits,
    strategy,
    with_argument,
)

NAMES = frozenset({"conv1d", "conv2d", "conv3d", "conv_transpose1d", "conv_transpose2d", "conv_transpose3d"})
RESAMPLING = frozenset({
    "upsample_nearest1d", "upsample_nearest2d", "upsample_nearest3d", "_upsample_nearest_exact2d",
    "upsample_bilinear2d", "upsample_bicubic2d", "avg_pool2d", "max_pool2d", "adaptive_avg_pool2d", "avg_pool1d",
    "avg_pool3d",
})  # fmt: skip


def convolution(node: Node, offers: Offers) -> Iterator[Strategy]:
    """By the batch; by channels of the result, or by groups; by those of the input, which gives terms of a sum."""
    x, weight, bias = node.args[0], node.args[1], argument(node, 2, "bias")
    assert isinstance(x, Node)
    if len(shape_of(x)) != len(shape_of(weight)):  # type: ignore[arg-type]
        return  # without a batch
    out, into = (1, 0) if _is_transposed(node) else (0, 1)
    for state in splits(offers, x, node):
        if state.axis == 0:
            yield strategy(state, {x: state})
    if _groups(node) > 1:
        yield from _by_groups(node, offers)
        return
    for state in splits(offers, node):
        if state.axis == 1:
            yield strategy(state, {weight: Split(out, state.segments), bias: Split(0, state.segments)})
    for state in splits(offers, x):
        if state.axis == 1:
            yield strategy(PARTIAL, {x: state, weight: Split(into, state.segments)})


def _by_groups(node: Node, offers: Offers) -> Iterator[Strategy]:
    """Channels of the input with those of the result that are computed from them, where no group is torn."""
    x, weight, bias, count = node.args[0], node.args[1], argument(node, 2, "bias"), _groups(node)
    assert isinstance(x, Node)
    given, made = shape_of(x)[1] // count, shape_of(node)[1] // count
    of_groups = [divided(state.segments, given) for state in splits(offers, x) if state.axis == 1]
    of_groups += [divided(state.segments, made) for state in splits(offers, node) if state.axis == 1]
    for groups in dict.fromkeys(filter(None, of_groups)):
        result = scaled(groups, made)
        rows = scaled(groups, given) if _is_transposed(node) else result
        taken = {x: Split(1, scaled(groups, given)), weight: Split(0, rows), bias: Split(0, result)}
        yield strategy(Split(1, result), taken)


def local_convolution(node: Node, chosen: Strategy, member: int) -> Local:
    """Of terms of a sum one has the bias; a device has so many groups as it has channels of."""
    x, call, count = node.args[0], own_call(node), _groups(node)
    assert isinstance(x, Node)
    state = chosen.takes(x)
    if not isinstance(state, Split) or state.axis != 1:
        return call
    if count > 1:
        return with_argument(call, 6, "groups", max(1, state.length(member) * count // shape_of(x)[1]))
    has_bias = argument(node, 2, "bias") is not None
    return with_argument(call, 2, "bias", None) if has_bias and member != once(state) else call


def apart(node: Node, offers: Offers) -> Iterator[Strategy]:
    """By pictures and channels, each of which is resampled, padded or pooled by itself."""
    x = node.args[0]
    assert isinstance(x, Node)
    for state in splits(offers, x, node):
        keeps = shape_of(x)[state.axis] == shape_of(node)[state.axis]
        if state.axis < 2 and keeps and not _pads(node, state.axis):
            yield strategy(state, {x: state})


def _pads(node: Node, axis: int) -> bool:
    if "pad" not in name_of(node):
        return False
    pads, rank = argument(node, 1, "pad"), len(shape_of(node))
    at = 2 * (rank - 1 - axis)
    return any(pads[at : at + 2])


def _is_transposed(node: Node) -> bool:
    return "transpose" in name_of(node)


def _groups(node: Node) -> int:
    return int(argument(node, 6, "groups", 1))


CONVOLUTION, APART = Rule(convolution, local_convolution), Rule(apart)
