"""Boxes of tensors, and which of them devices of a group send one another where the state of a value changes."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache
from itertools import accumulate, pairwise
from typing import TYPE_CHECKING, NamedTuple

from .state import Halo, Parted, Split, State

if TYPE_CHECKING:
    import torch


@dataclass(frozen=True, slots=True)
class Box:
    """A part of a tensor: ``ranges`` are axes with the first index and how many there are, all of the other axes."""

    ranges: tuple[tuple[int, int, int], ...] = ()

    def of(self, tensor: torch.Tensor) -> torch.Tensor:
        """The box of a tensor, as a view."""
        for axis, start, length in self.ranges:
            tensor = tensor.narrow(axis, start, length)
        return tensor

    def part(self, sizes: tuple[int, ...]) -> float:
        """The part of all elements of a tensor of some sizes that lies in the box."""
        found = 1.0
        for axis, _, length in self.ranges:
            found *= length / max(1, sizes[axis])
        return found

    def __str__(self) -> str:
        return f"[{', '.join(f'{axis}: {start}:{start + length}' for axis, start, length in self.ranges)}]"


@dataclass(frozen=True, slots=True)
class Landing:
    """A box of what a device has of a value, and where that lies in what another has of what it becomes."""

    taken: Box
    into: Box

    def __str__(self) -> str:
        return f"{self.into}" + (f" of {self.taken}" if self.taken.ranges else "")


class _Stretch(NamedTuple):
    """A stretch of a split axis that a device has: where it lies in the value, and where in what the device has."""

    start: int
    stop: int
    at: int


@lru_cache(maxsize=1 << 14)
def landings(source: State, target: State, sender: int, receiver: int) -> tuple[Landing, ...]:
    """What one device of a group sends another where a value that is whole or split becomes another such state.

    Devices are given by their numbers in the groups of both states, which are one group where both are split. What all
    devices of a split value send one has every element once; of one that is whole, what any of them sends has. Zeros of
    a halo nobody sends; a value that has one is not sent on.
    """
    return tuple(_landings(source, target, sender, receiver))


def _landings(source: State, target: State, sender: int, receiver: int) -> Iterator[Landing]:
    if not isinstance(source, Split):
        if isinstance(target, Parted):
            for one in _stretches(target, receiver):
                yield Landing(_box(target.axis, one.start, one), _box(target.axis, one.at, one))
        return
    for one in _stretches(source, sender):
        if not isinstance(target, Parted):
            yield Landing(_own(source, sender, one), _box(source.axis, one.start, one))
            continue
        for other in _stretches(target, receiver):
            if source.axis != target.axis:
                taken = (*_own(source, sender, one).ranges, (target.axis, other.start, other.stop - other.start))
                into = _box(source.axis, one.start, one).ranges + _box(target.axis, other.at, other).ranges
                yield Landing(Box(tuple(sorted(taken))), Box(tuple(sorted(into))))
                continue
            both = _Stretch(max(one.start, other.start), min(one.stop, other.stop), 0)
            if both.start < both.stop:
                places = one.at + both.start - one.start, other.at + both.start - other.start
                yield Landing(*(_box(source.axis, at, both) for at in places))


def zeros(state: State, member: int) -> Iterator[Box]:
    """The boxes of what a device has of a value that are zeros: those of a halo beyond the ends of its axis."""
    if not isinstance(state, Halo):
        return
    (before, after), length = state.zeros[member], state.length(member)
    for start, count in ((0, before), (length - after, after)):
        if count:
            yield Box(((state.axis, start, count),))


def _stretches(split: Parted, member: int) -> list[_Stretch]:
    mine, first = split.ranges(member), split.zeros[member][0] if isinstance(split, Halo) else 0
    ends = pairwise(accumulate((stop - start for start, stop in mine), initial=first))
    return [_Stretch(*one, at) for one, (at, _) in zip(mine, ends, strict=True)]


def _box(axis: int, at: int, stretch: _Stretch) -> Box:
    return Box(((axis, at, stretch.stop - stretch.start),))


def _own(split: Split, member: int, stretch: _Stretch) -> Box:
    """A stretch in what its device has; all of that where it has no other."""
    return Box() if split.length(member) == stretch.stop - stretch.start else _box(split.axis, stretch.at, stretch)
