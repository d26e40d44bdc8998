"""Convolutions: by pictures of a batch, by channels, and in space, where each device reads what its windows cover."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
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
from .windows import Window, numbers, results_of

NAMES = frozenset({"conv1d", "conv2d", "conv3d", "conv_transpose1d", "conv_transpose2d", "conv_transpose3d"})


def convolution(node: Node, offers: Offers) -> Iterator[Strategy]:
    """By the batch; in space, or in time; by channels of the result, or by groups; by the input's, as terms."""
    x, weight, bias = node.args[0], node.args[1], argument(node, 2, "bias")
    assert isinstance(x, Node)
    if len(shape_of(x)) != len(shape_of(weight)):  # type: ignore[arg-type]
        return  # without a batch
    out, into = (1, 0) if _is_transposed(node) else (0, 1)
    for state in splits(offers, x, node):
        if state.axis == 0:
            yield strategy(state, {x: state})
    for state in results_of(node, offers) if _pads_alike(node) else ():
        yield strategy(state, {x: window_of(node, state.axis).read(state.axis, state.segments[0])})
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


def window_of(node: Node, axis: int) -> Window:
    """The windows of a convolution along an axis."""
    x, weight, transposed = node.args[0], node.args[1], _is_transposed(node)
    assert isinstance(x, Node)
    assert isinstance(weight, Node)
    count, at = len(shape_of(node)) - 2, axis - 2
    stride = numbers(argument(node, 3, "stride", 1), count)[at]
    padding = 0 if _padding(node) == "valid" else numbers(_padding(node), count)[at]
    dilation = numbers(argument(node, 7 if transposed else 5, "dilation", 1), count)[at]
    extent = (shape_of(weight)[axis] - 1) * dilation + 1
    return Window(shape_of(x)[axis], shape_of(node)[axis], extent, stride, padding, transposed)


def local_convolution(node: Node, chosen: Strategy, member: int) -> Local:
    """Of terms of a sum one has the bias; a device has so many groups as it has channels of; space has its zeros."""
    x, call, count = node.args[0], own_call(node), _groups(node)
    assert isinstance(x, Node)
    result, state = chosen.results[0], chosen.takes(x)
    if isinstance(result, Split) and result.axis > 1:
        return _in_space(node, call, result, member)
    if not isinstance(state, Split) or state.axis != 1:
        return call
    if count > 1:
        return with_argument(call, 6, "groups", max(1, state.length(member) * count // shape_of(x)[1]))
    has_bias = argument(node, 2, "bias") is not None
    return with_argument(call, 2, "bias", None) if has_bias and member != once(state) else call


def _in_space(node: Node, call: Local, result: Split, member: int) -> Local:
    """Nothing is padded along the axis; of a transposed one, what its elements add to others' results is dropped."""
    count, at, window = len(shape_of(node)) - 2, result.axis - 2, window_of(node, result.axis)
    if _padding(node) == "valid":
        return call
    padding = numbers(_padding(node), count)
    padding[at] = 0
    if window.is_transposed:
        made = result.segments[0][member]
        padding[at], after = window.dropped(window.reach(*made), made)
        more = numbers(argument(node, 5, "output_padding", 0), count)
        more[at] = padding[at] - after
        call = with_argument(call, 5, "output_padding", more)
    return with_argument(call, 4, "padding", padding)


def _pads_alike(node: Node) -> bool:
    """Whether padding is in numbers, or there is none."""
    return bool(_padding(node) != "same")


def _padding(node: Node) -> Any:
    """The padding in numbers, or the word for it, which one kind of convolutions has."""
    overload = node.target
    assert isinstance(overload, torch._ops.OpOverload)
    return argument(node, 4, "padding", "valid" if overload._overloadname == "padding" else 0)


def _is_transposed(node: Node) -> bool:
    return "transpose" in name_of(node)


def _groups(node: Node) -> int:
    return int(argument(node, 6, "groups", 1))


CONVOLUTION = Rule(convolution, local_convolution)
