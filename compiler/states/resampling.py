"""Padding and resampling: by pictures and channels, and in space where devices need nothing but what they have."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
from torch.fx import Node

from ..ir.slices import cover
from ..ir.state import Halo, Parted, Split
from .strategy import (
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
    splits,
    strategy,
    with_argument,
)
from .windows import Window, in_proportion, numbers, pads_of, results_of

NEAREST = frozenset({
    "upsample_nearest1d", "upsample_nearest2d", "upsample_nearest3d", "_upsample_nearest_exact1d",
    "_upsample_nearest_exact2d", "_upsample_nearest_exact3d",
})  # fmt: skip
SMOOTH = frozenset({"upsample_linear1d", "upsample_bilinear2d", "upsample_bicubic2d", "upsample_trilinear3d"})
POOLING = frozenset({"avg_pool1d", "avg_pool2d", "avg_pool3d", "max_pool2d"})
SHUFFLING = frozenset({"pixel_shuffle", "pixel_unshuffle"})
PADDING = frozenset({"pad", "constant_pad_nd"})

_ALONG_ENDS = ("constant", "reflect", "replicate")
"""Ways to pad for which the elements at the end of an axis suffice."""


def apart(node: Node, offers: Offers) -> Iterator[Strategy]:
    """By pictures and channels, each of which is resampled or pooled by itself."""
    x = node.args[0]
    assert isinstance(x, Node)
    for state in splits(offers, x, node):
        if state.axis < min(2, len(shape_of(x)) - 1) and shape_of(x)[state.axis] == shape_of(node)[state.axis]:
            yield strategy(state, {x: state})


def padded(node: Node, offers: Offers) -> Iterator[Strategy]:
    """By axes that are not padded; by others, the devices that have the ends pad them."""
    x, pads = node.args[0], pads_of(node)
    assert isinstance(x, Node)
    mode = argument(node, 2, "mode", "constant") if name_of(node) == "pad" else "constant"
    for state in splits(offers, x, node):
        if not any(pads[state.axis]):
            yield strategy(state, {x: state})
    if mode not in _ALONG_ENDS:
        return
    offered = [state for state in splits(offers, x) if _can_pad(state, pads[state.axis], mode)]
    for state in splits(offers, node):
        before, after = pads[state.axis]
        size = shape_of(x)[state.axis]
        if len(state.segments) == 1 and size:
            ends = [min(max(stop - before, 0), size) for _, stop in state.segments[0]]
            back = in_proportion(state.axis, ends, 1, 1)
            if _can_pad(back, (before, after), mode) and _grown(back, (before, after)) == state:
                offered.append(back)
    for state in dict.fromkeys(offered):
        yield strategy(_grown(state, pads[state.axis]), {x: state})
    for border in offers(node):
        if isinstance(border, Halo) and (within := before_padding(node, border)):
            yield strategy(border, {x: within})


def before_padding(node: Node, state: Halo) -> Halo | None:
    """What devices have of the operand that have a border of its padded result, and pad it along other axes alone.

    None where that is not to be had: of an operation that does not put zeros around, or where no border is needed.
    """
    if (
        node.op != "call_function"
        or name_of(node) not in PADDING
        or argument(node, 2, "mode", "constant") != "constant"
    ):
        return None
    pads, (x, *_) = pads_of(node), node.all_input_nodes
    if argument(node, 3 if name_of(node) == "pad" else 2, "value") or min(min(one) for one in pads) < 0:
        return None
    (before, _), size, bounds, zeros = pads[state.axis], shape_of(x)[state.axis], [], []
    for (start, stop), (lead, trail) in zip(state.bounds, state.zeros, strict=True):
        begin, end = (min(max(one - before, 0), size) for one in (start, stop))
        ahead = min(max(before - start, 0), stop - start)
        bounds.append((begin, end))
        zeros.append((lead + ahead, trail + stop - start - ahead - (end - begin)))
    if cover(tuple(bounds), size) and not any(map(any, zeros)):
        return None
    return Halo(state.axis, tuple(bounds), tuple(zeros), size)


def _can_pad(state: Split, pads: tuple[int, int], mode: str) -> bool:
    """Whether the devices that have the ends of a split axis can pad them, of their own elements."""
    if len(state.segments) > 1 or min(pads) < 0 or not any(pads) or not state.size:
        return False
    first, last = _ends(state)
    least = [1 + pad if mode == "reflect" and pad else 1 for pad in pads]
    return state.length(first) >= least[0] and state.length(last) >= least[1]


def _ends(state: Split) -> tuple[int, int]:
    """The devices that have the first element of an axis, and the last one."""
    having = [at for at in range(len(state.segments[0])) if state.length(at)]
    return having[0], having[-1]


def _grown(state: Split, pads: tuple[int, int]) -> Split:
    """A split axis of which the device that has an end has what is padded there."""
    first, last = _ends(state)
    before, after = pads
    found = []
    for at, (start, stop) in enumerate(state.segments[0]):
        shift = 0 if at < first else before
        found.append((start + (0 if at <= first else before), stop + shift + (after if at >= last else 0)))
    size = state.size + before + after
    found = [(start, stop) if at <= last else (size, size) for at, (start, stop) in enumerate(found)]
    return Split(state.axis, (tuple(found),))


def local_pad(node: Node, chosen: Strategy, member: int) -> Local:
    """A device pads the ends that it has, but for those that it was brought as zeros."""
    x, pads = node.args[0], pads_of(node)
    assert isinstance(x, Node)
    state = chosen.takes(x)
    if not isinstance(state, Parted) or not any(pads[state.axis]):
        return own_call(node)
    (first, last), (before, after) = (None, None) if isinstance(state, Halo) else _ends(state), pads[state.axis]
    pads[state.axis] = before if member == first else 0, after if member == last else 0
    count = len(argument(node, 1, "pad")) // 2
    flat = [one for axis in range(1, count + 1) for one in pads[-axis]]
    return with_argument(own_call(node), 1, "pad", flat)


def nearest(node: Node, offers: Offers) -> Iterator[Strategy]:
    """By pictures and channels; in space where each device finds all elements that its results are in what it has."""
    yield from apart(node, offers)
    x = node.args[0]
    assert isinstance(x, Node)
    for result in results_of(node, offers):
        size, made = shape_of(x)[result.axis], shape_of(node)[result.axis]
        ends = [stop for _, stop in result.segments[0]]
        taken = in_proportion(result.axis, ends, made, size)
        if _is_found(node, result, taken):
            yield strategy(result, {x: taken})


def _is_found(node: Node, result: Split, taken: Split) -> bool:
    """Whether each device takes the elements for its results that the whole takes, by the arithmetic of kernels."""
    size, made = taken.size, result.size
    whole = _sources(node, result.axis, size, made)
    factor = None if argument(node, 1, "output_size") is not None else _factor(node, result.axis)
    for member, (start, stop) in enumerate(result.segments[0]):
        begin, own = taken.segments[0][member][0], taken.length(member)
        if bool(own) != (start < stop) or (factor and int(own * factor) != stop - start):
            return False
        if own and not np.array_equal(_sources(node, result.axis, own, stop - start) + begin, whole[start:stop]):
            return False
    return True


def _sources(node: Node, axis: int, size: int, made: int) -> np.ndarray:
    """Which element each result is, in float32, as kernels have it."""
    scale = np.float32(size / made) if (given := _factor(node, axis)) is None else np.float32(1 / given)
    middle = np.float32(0.5 if "exact" in name_of(node) else 0)
    places = np.floor((np.arange(made, dtype=np.float32) + middle) * scale)
    found: np.ndarray = np.minimum(places.astype(np.int64), size - 1)
    return found


def _factor(node: Node, axis: int) -> float | None:
    """The factor that is said of an axis, in place of sizes."""
    if getattr(node.target, "_overloadname", "") == "vec":
        factors = argument(node, 2, "scale_factors")
        return factors[axis - 2] if factors else None
    given = argument(node, axis, f"scales_{'dhw'[axis - len(shape_of(node))]}" if len(shape_of(node)) > 3 else "scales")
    return float(given) if given is not None else None


def local_nearest(node: Node, chosen: Strategy, member: int) -> Local:
    """The sizes that are said are those of what a device has."""
    result, sizes = chosen.results[0], argument(node, 1, "output_size")
    if not isinstance(result, Split) or result.axis < 2 or sizes is None:
        return own_call(node)
    own = [*sizes[: result.axis - 2], result.length(member), *sizes[result.axis - 1 :]]
    return with_argument(own_call(node), 1, "output_size", own)


def pooled(node: Node, offers: Offers) -> Iterator[Strategy]:
    """By pictures and channels; in space where nothing is padded, of what windows cover."""
    yield from apart(node, offers)
    x, count = node.args[0], len(shape_of(node)) - 2
    assert isinstance(x, Node)
    extents = numbers(argument(node, 1, "kernel_size"), count)
    strides = numbers(argument(node, 2, "stride") or extents, count)
    is_dilated = "max" in name_of(node) and any(one != 1 for one in numbers(argument(node, 4, "dilation", 1), count))
    rounds_up = argument(node, 5 if "max" in name_of(node) else 4, "ceil_mode", False)
    if count < 1 or rounds_up or is_dilated or any(numbers(argument(node, 3, "padding", 0), count)):
        return
    for result in results_of(node, offers):
        axis = result.axis
        window = Window(shape_of(x)[axis], shape_of(node)[axis], extents[axis - 2], strides[axis - 2], 0)
        yield strategy(result, {x: window.read(axis, result.segments[0])})


def shuffled(node: Node, offers: Offers) -> Iterator[Strategy]:
    """By axes before the channels; by rows and columns, each of which becomes several, or several one."""
    x, by, rank = node.args[0], int(node.args[1]), len(shape_of(node))  # type: ignore[arg-type]
    assert isinstance(x, Node)
    shrinks = "unshuffle" in name_of(node)
    pairs = []
    for state in splits(offers, x):
        segments = divided(state.segments, by) if shrinks else scaled(state.segments, by)
        pairs += [(state, segments)] if segments else []
    for state in splits(offers, node):
        segments = scaled(state.segments, by) if shrinks else divided(state.segments, by)
        pairs += [(Split(state.axis, segments), state.segments)] if segments else []
    for taken, segments in dict.fromkeys(pairs):
        if taken.axis >= rank - 2:
            yield strategy(Split(taken.axis, segments), {x: taken})
    for state in splits(offers, x, node):
        if state.axis < rank - 3:
            yield strategy(state, {x: state})


APART, PAD, POOL = Rule(apart), Rule(padded, local_pad), Rule(pooled)
NEAR, SHUFFLE = Rule(nearest, local_nearest), Rule(shuffled)
