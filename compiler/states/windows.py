"""Windows that slide over an axis: which elements devices read that have a part of the results, and with what zeros.

A device that has some results of a convolution needs the elements that their windows cover: its own part of the operand
and a border of its neighbours', which is a halo. Padding is among what it gets, as zeros where a window reaches beyond
an end of the axis; so it pads no more itself, on no device.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import TypeAlias

from torch.fx import Node

from ..ir.slices import Bounds, cover
from ..ir.state import Halo, Parted, Split
from .strategy import Offers, argument, name_of, shape_of, splits

Reach: TypeAlias = tuple[int, int]
"""The first element that is read, and the one after the last; they may lie beyond the ends of the axis."""


@dataclass(frozen=True)
class Window:
    """How the results along an axis read the elements of an operand's.

    Args:
        size: the elements of the operand.
        made: the results.
        extent: how many elements a window reaches over.
        stride: how far the next one lies from it; of a transposed one, how far the next element's results lie.
        padding: how far before the first element the first window begins.
        is_transposed: whether windows are over the results, one for each element.
    """

    size: int
    made: int
    extent: int
    stride: int
    padding: int
    is_transposed: bool = False

    def reach(self, start: int, stop: int) -> Reach:
        """What a stretch of the results reads."""
        if self.is_transposed:
            return self._reach_of_transposed(start, stop)
        first = start * self.stride - self.padding
        last = first + (stop - start - 1) * self.stride + self.extent
        return first, max(last, min(first + (stop - start) * self.stride, self.size))

    def _reach_of_transposed(self, start: int, stop: int) -> Reach:
        """The same, with as many elements more that no less is dropped in front of what is computed than behind."""
        first = -((self.extent - 1 - start - self.padding) // self.stride)
        last = (stop - 1 + self.padding) // self.stride + 1
        if self.dropped((first, last), (start, stop))[0] < 0:  # no window is over the first of the results
            first, last = first - 1, last + 1
        before, after = self.dropped((first, last), (start, stop))
        return first - max(0, -((before - after) // self.stride)), last

    def dropped(self, reach: Reach, made: Reach) -> tuple[int, int]:
        """How many of the results that elements of a reach add to, transposed, lie before and after some of these."""
        begin = reach[0] * self.stride - self.padding
        end = begin + (reach[1] - reach[0] - 1) * self.stride + self.extent
        return made[0] - begin, end - made[1]

    def read(self, axis: int, results: Bounds) -> Parted:
        """The state in which devices read the operand that have such ranges of the results."""
        ranges, zeros, end = list[Reach](), list[Reach](), 0
        for start, stop in results:
            first, last = self.reach(start, stop) if start < stop else (end, end)
            begin, end = (min(max(one, 0), self.size) for one in (first, last))
            ranges.append((begin, end))
            before = min(max(-first, 0), last - first)
            zeros.append((before, last - first - before - (end - begin)))
        bounds = tuple(ranges)
        if cover(bounds, self.size) and not any(map(any, zeros)):
            return Split(axis, (bounds,))
        return Halo(axis, bounds, tuple(zeros), self.size)


def results_of(node: Node, offers: Offers) -> Iterator[Split]:
    """The states in which axes behind the second of a result are split: as offered, and in proportion to its operand.

    Of an operand that was padded just before, the proportion is that of what was padded: padding is no share.
    """
    x = node.args[0]
    assert isinstance(x, Node)
    found = [state for state in splits(offers, node) if state.axis > 1 and len(state.segments) == 1]
    for state in splits(offers, x):
        if state.axis > 1 and len(state.segments) == 1:
            size, (before, after) = shape_of(x)[state.axis], _padded(x, state.axis)
            ends = (min(max(stop - before, 0), size - before - after) for _, stop in state.segments[0])
            found.append(in_proportion(state.axis, list(ends), size - before - after, shape_of(node)[state.axis]))
    yield from dict.fromkeys(found)


def in_proportion(axis: int, ends: Sequence[int], size: int, made: int) -> Split:
    """An axis split at ends of another one, in proportion to the sizes of both."""
    cuts = ((2 * end * made + size) // (2 * size) for end in ends) if size else (made for _ in ends)
    return Split(axis, (tuple(pairwise((0, *cuts))),))


def _padded(x: Node, axis: int) -> tuple[int, int]:
    """How many elements were put before and behind those of an axis, where its operation pads."""
    return pads_of(x)[axis] if x.op == "call_function" and "pad" in name_of(x) else (0, 0)


def pads_of(node: Node) -> list[tuple[int, int]]:
    """What an operation that pads puts before and behind the elements of each axis."""
    pads, rank = argument(node, 1, "pad"), len(shape_of(node))
    found = [(0, 0)] * rank
    for at in range(len(pads) // 2):
        found[rank - 1 - at] = pads[2 * at], pads[2 * at + 1]
    return found


def numbers(given: int | Sequence[int], count: int) -> list[int]:
    """A number for each of some axes: those that are given, or the one that is, for all."""
    some = [given] if isinstance(given, int) else list(given)
    return some * count if len(some) == 1 else some
