"""Reshapes: a split axis stays split where the result has an axis, or several axes, of just its elements."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

from torch.fx import Node

from ..ir.slices import Bounds
from ..ir.state import PARTIAL, Split
from .strategy import (
    MOST_SEGMENTS,
    Local,
    Offers,
    Rule,
    Strategy,
    divided,
    is_dynamic,
    local_sizes,
    name_of,
    own_call,
    scaled,
    shape_of,
    shifted,
    splits,
    strategy,
    with_argument,
)

NAMES = frozenset({"view", "reshape", "_unsafe_view", "flatten", "unflatten"})


def strategies(node: Node, offers: Offers) -> Iterator[Strategy]:
    """The operand is split on an axis whose segments are those of an axis of the result, or is terms of a sum."""
    operand = node.args[0]
    assert isinstance(operand, Node)
    old, new = shape_of(operand), shape_of(node)
    pairs: list[tuple[Split | None, Split | None]] = [
        (state, reshaped(state, old, new)) for state in splits(offers, operand)
    ]
    pairs += [(reshaped(state, new, old), state) for state in splits(offers, node)]
    for taken, result in dict.fromkeys(pairs):
        if taken and result and reshaped(taken, old, new) == result and not is_dynamic(node, result.axis):
            yield strategy(result, {operand: taken})
    if PARTIAL in offers(operand):
        yield strategy(PARTIAL, {operand: PARTIAL})


def reshaped(state: Split | None, old: Sequence[int], new: Sequence[int]) -> Split | None:
    """What a split of a tensor is after a reshape that keeps what each device has; None where there is no such split.

    The axis is spread out to the elements of its group of axes, and its segments with it, once for each index of the
    axes before it; then an axis of the result is looked for whose segments, repeated, are those.
    """
    if state is None:
        return None
    for before, after in groups(old, new):
        if state.axis not in before:
            continue
        at = before.index(state.axis)
        inner, outer = _elements(old, before[at + 1 :]), _elements(old, before[:at])
        if outer * len(state.segments) > MOST_SEGMENTS * MOST_SEGMENTS:
            return None
        flat = scaled(state.segments, inner)
        spread = [one for index in range(outer) for one in shifted(flat, index * old[state.axis] * inner)]
        return _gathered(spread, new, after)
    return None


def _gathered(spread: Sequence[Bounds], new: Sequence[int], after: Sequence[int]) -> Split | None:
    """The axis among some of a result whose segments, once for each index of those before it, are these."""
    for at, axis in enumerate(after):
        repeats, inner = _elements(new, after[:at]), _elements(new, after[at + 1 :])
        if new[axis] < 2 or len(spread) % repeats or len(spread) // repeats > MOST_SEGMENTS:
            continue
        count = len(spread) // repeats
        first, step = tuple(spread[:count]), new[axis] * inner
        if first[-1][-1][1] != step:
            continue
        again = [one for index in range(repeats) for one in shifted(first, index * step)]
        segments = divided(first, inner) if again == list(spread) else None
        if segments:
            return Split(axis, segments)
    return None


def groups(old: Sequence[int], new: Sequence[int]) -> Iterator[tuple[list[int], list[int]]]:
    """The axes before and after a reshape, in groups of as many elements, as few axes in each as can be.

    >>> list(groups((2, 6, 4), (2, 3, 2, 4)))
    [([0], [0]), ([1], [1, 2]), ([2], [3])]
    """
    at = to = 0
    while at < len(old) or to < len(new):
        before, after = list(range(at, min(at + 1, len(old)))), list(range(to, min(to + 1, len(new))))
        while (now := _elements(old, before)) != (then := _elements(new, after)):
            if now < then:
                before.append(before[-1] + 1 if before else at)
            else:
                after.append(after[-1] + 1 if after else to)
        at, to = at + len(before), to + len(after)
        yield before, after


def _elements(shape: Sequence[int], axes: Sequence[int]) -> int:
    return math.prod(shape[axis] for axis in axes)


def local(node: Node, chosen: Strategy, member: int) -> Local:
    """The result has on a device the sizes of what that has, which are said in full where sizes are said."""
    call, name = own_call(node), name_of(node)
    sizes = local_sizes(shape_of(node), chosen.results[0], member)
    if name == "flatten":
        return call
    if name != "unflatten":
        return with_argument(call, 1, "size", sizes)
    axis = node.args[1] % len(shape_of(node.args[0]))  # type: ignore[arg-type, operator]
    count = 1 + len(shape_of(node)) - len(shape_of(node.args[0]))  # type: ignore[arg-type]
    return with_argument(call, 2, "sizes", sizes[axis : axis + count])


RULE = Rule(strategies, local)
