"""Whether the parts of an operation have the bits of the whole: kernels round by the sizes of what they are given.

What a CPU does with one thread, measured. A tail of fewer than four rows of a matmul is added in another order; one of
a row of numbers that is shorter than a vector is computed one by one; a small picture by itself is convolved by another
kernel than several, or than a large one. Where a mode is to keep bits, operations are not split so.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from math import prod

import torch
from torch.fx import Node

from ...compiler.ir.program import tensors_of
from ...compiler.ir.state import Parted, Split
from ...compiler.ir.value import dense_stride
from ...compiler.states.convolutions import NAMES as CONVOLUTIONS
from ...compiler.states.reductions import DIM as REDUCTIONS
from ...compiler.states.strategy import Strategy, argument, name_of, shape_of
from ...compiler.states.windows import numbers

KEEPING = frozenset({"sequence", "batch"})
"""The modes that keep bits where it is known how."""

VECTORS = 32
"""So many numbers in a row are computed at once by kernels of activations, and summed at once side by side."""

FEWEST_ROWS = 4
"""A matmul of fewer rows adds in another order: no device computes so few."""

QUERY_BLOCKS = ((768, 256), (192, 64), (0, 32))
"""From how many queries on attention takes them in blocks of how many."""

LEAST_HEAD = 16
"""Heads of fewer numbers are multiplied in another order where blocks begin elsewhere."""

SMALL = 20480
"""A single picture of no more numbers is convolved by another kernel."""

COLUMNS = 32
"""A convolution as a matmul of fewer columns adds in another order."""

_ACTIVATIONS = frozenset({"silu", "gelu", "sigmoid", "mish", "softplus"})


def keeps_bits(node: Node, way: Strategy) -> bool:
    """Whether the parts of an operation have the bits of the whole, as far as is known of its kernels."""
    keeps = _KEEPS.get(name_of(node))
    return keeps is None or keeps(node, way)


def _has_whole_vectors(node: Node, way: Strategy) -> bool:
    """Whether each stretch of an activation ends where a vector does."""
    (state,) = way.results
    return not isinstance(state, Split) or _ends_in_vectors(shape_of(node), state, range(len(shape_of(node))))


def _sums_in_vectors(node: Node, way: Strategy) -> bool:
    """Whether sums that lie side by side in memory are parted between vectors."""
    x = node.args[0]
    assert isinstance(x, Node)
    state, (kind,) = way.takes(x), tensors_of(x)
    if not isinstance(state, Split) or not kind.dtype.is_floating_point:
        return True
    if not all(isinstance(step, int) for step in kind.stride):
        return True
    order = sorted(range(len(kind.sizes)), key=lambda axis: (kind.sizes[axis] != 1, -int(kind.stride[axis])))
    is_inner = order[-1] in _reduced(node, len(kind.sizes))
    return is_inner or state.axis in _reduced(node, len(kind.sizes)) or _ends_in_vectors(kind.sizes, state, order)


def _reduced(node: Node, rank: int) -> set[int]:
    given = argument(node, REDUCTIONS[name_of(node)], "dim")
    axes = range(rank) if given is None or given == [] else [given] if isinstance(given, int) else given
    return {axis % rank for axis in axes}


def _ends_in_vectors(sizes: Sequence[int], state: Split, order: Sequence[int]) -> bool:
    """Whether what each device has ends with a vector, of axes that lie in memory in some order, the innermost last."""
    inner = prod(sizes[axis] for axis in order[list(order).index(state.axis) + 1 :])
    return not any(state.length(member) * inner % VECTORS for member in _members(state))


def _members(state: Parted) -> range:
    return range(len(state.segments[0]))


def _last(state: Split) -> int:
    """The device that has the end of an axis."""
    return next(member for member in _members(state) if any(stop == state.size for _, stop in state.ranges(member)))


def _has_blocks(node: Node, way: Strategy) -> bool:
    """Whether the queries that end a device's in a block of few rows are those that end the whole so."""
    (state,) = way.results
    if not isinstance(state, Split) or state.axis != len(shape_of(node)) - 2:
        return True
    if shape_of(node)[-1] < LEAST_HEAD and not _is_on_blocks(state):
        return False
    if any(0 < state.length(member) < min(FEWEST_ROWS, state.size) for member in _members(state)):
        return False  # nothing but a block of few rows, which lies otherwise in memory than behind others
    few, last = _few(state.size), _last(state)
    return all(_few(state.length(member)) == (few if member == last else 0) for member in _members(state))


def _is_on_blocks(state: Split) -> bool:
    """Whether every range of queries begins and ends with a block, or with all."""
    least = min(size for _, size in QUERY_BLOCKS)
    ends = {end for member in _members(state) for bounds in state.ranges(member) for end in bounds}
    return all(end % least == 0 for end in ends - {state.size})


def _few(queries: int) -> int:
    """How many queries are in a block of fewer rows than a matmul takes as it takes more."""
    tail = queries % next(size for least, size in QUERY_BLOCKS if queries >= least)
    return tail if tail < FEWEST_ROWS else 0


def _has_one_kernel(node: Node, way: Strategy) -> bool:
    """Whether all devices convolve what they have by the kernel that convolves the whole."""
    x = node.args[0]
    assert isinstance(x, Node)
    (kind,), state = tensors_of(x), way.takes(x)
    if not isinstance(state, Parted) or kind.dtype != torch.float32:
        return True
    before, after = kind.sizes[: state.axis], kind.sizes[state.axis + 1 :]
    parts = [(*before, state.length(member), *after) for member in _members(state) if state.length(member)]
    is_native = _is_native(node, kind.sizes)
    if any(_is_native(node, sizes) != is_native for sizes in parts):
        return False
    return state.axis < 2 or (_has_columns(node, way) if is_native else set(_kernel(node)) != {1})


def _has_columns(node: Node, way: Strategy) -> bool:
    """Whether each device makes so much of a picture that a matmul over it adds as over the whole."""
    (state,), sizes = way.results, shape_of(node)
    assert isinstance(state, Split)
    others = prod(size for axis, size in enumerate(sizes) if axis > 1 and axis != state.axis)
    return all(state.length(member) * others >= COLUMNS for member in _members(state) if state.length(member))


def _kernel(node: Node) -> tuple[int, ...]:
    """The last two sizes of the windows of a convolution."""
    return (1, *shape_of(node.args[1])[2:])[-2:]  # type: ignore[arg-type]


def _is_native(node: Node, sizes: Sequence[int]) -> bool:
    """Whether a picture is convolved by PyTorch's own kernel, not by oneDNN's."""
    rank = len(sizes) - 2
    is_transposed, kernel = "transpose" in name_of(node), _kernel(node)
    steps = numbers(argument(node, 3, "stride", 1), rank)
    steps += numbers(argument(node, 7 if is_transposed else 5, "dilation", 1), rank)
    if kernel == (1, 1) and set(steps) == {1} and sizes[0] < 16:
        return True
    return argument(node, 6, "groups", 1) == 1 == sizes[0] and min(kernel) <= 3 and prod(sizes[:4]) <= SMALL


def _has_pictures(node: Node, way: Strategy) -> bool:
    """Whether no device has a single picture whose channels lie innermost, for of one alone strides do not say so."""
    x = node.args[0]
    assert isinstance(x, Node)
    (kind,), state = tensors_of(x), way.takes(x)
    if not isinstance(state, Split) or state.axis or state.size < 2 or len(kind.sizes) < 3:
        return True
    is_innermost = isinstance(kind.stride[1], int) and kind.stride[1] == 1 < kind.sizes[1]
    return not is_innermost or all(state.length(member) != 1 for member in _members(state))


def _has_batch_copied(node: Node, way: Strategy) -> bool:
    """Whether no device reads a single picture as it lies, of several that are copied for a matmul of all rows."""
    x = node.args[0]
    assert isinstance(x, Node)
    (kind,), state = tensors_of(x), way.takes(x)
    if not isinstance(state, Split) or state.axis or len(kind.sizes) < 3 or kind.dtype != torch.float32:
        return True
    is_laid_out = kind.stride == dense_stride(kind.shape)
    return is_laid_out or state.size < 2 or all(state.length(member) != 1 for member in _members(state))


_KEEPS: Mapping[str, Callable[[Node, Strategy], bool]] = {
    **dict.fromkeys(_ACTIVATIONS, _has_whole_vectors),
    **dict.fromkeys(("mean", "sum", "linalg_vector_norm", "norm"), _sums_in_vectors),
    **dict.fromkeys(CONVOLUTIONS, _has_one_kernel),
    "scaled_dot_product_attention": _has_blocks,
    "group_norm": _has_pictures,
    "linear": _has_batch_copied,
}
