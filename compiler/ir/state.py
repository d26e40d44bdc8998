"""What each device of a group has of a value: all of it, some of an axis, perhaps with a halo, or a term of a sum.

A node of several devices runs on each of them, with what that device has of its operands, and yields what it has of the
result. Nothing but a node that is there for it changes what devices have.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import TypeAlias

from .slices import Bounds, cover

Range = tuple[int, int]


@dataclass(frozen=True, slots=True)
class Whole:
    """Every device has the value, with the same bits."""

    def __str__(self) -> str:
        return "whole"


@dataclass(frozen=True)
class Split:
    """Each device has some of an axis: one range of each segment, in the group's order; a range may be empty.

    A segment is a stretch of the axis that is shared out by itself. Queries, keys and values that lie behind one
    another in one matrix are three, so that each device has its own heads of all of them. The segments follow one
    another, and so do the ranges in each; together they cover the axis. What a device has lies together, in order.
    """

    axis: int
    segments: tuple[Bounds, ...]

    @property
    def size(self) -> int:
        """The elements along the axis, of all devices."""
        return self.segments[-1][-1][1]

    def ranges(self, member: int) -> tuple[Range, ...]:
        """Which elements along the axis a device of the group has, by its number: ranges that are not empty."""
        return self._ranges[member]

    @cached_property
    def _ranges(self) -> tuple[tuple[Range, ...], ...]:
        return tuple(tuple(one for one in mine if one[0] < one[1]) for mine in zip(*self.segments, strict=True))

    def length(self, member: int) -> int:
        """How many elements along the axis a device has."""
        return self._lengths[member]

    @cached_property
    def _lengths(self) -> tuple[int, ...]:
        return tuple(sum(stop - start for start, stop in mine) for mine in self._ranges)

    def share(self, member: int) -> float:
        """The part of the axis that a device has."""
        return self.length(member) / max(1, self.size)

    def covers(self, members: int, size: int | str) -> bool:
        """Whether it gives each of so many devices a range of every segment, and an axis of such a size is covered."""
        together = tuple(bounds for segment in self.segments for bounds in segment)
        return all(len(segment) == members for segment in self.segments) and cover(together, size)

    def __str__(self) -> str:
        each = ", ".join(f"[{', '.join(f'{start}:{stop}' for start, stop in one)}]" for one in self.segments)
        return f"split {self.axis} {each}"

    def __hash__(self) -> int:
        return self._hash

    @cached_property
    def _hash(self) -> int:
        return hash((self.axis, self.segments))


@dataclass(frozen=True, slots=True)
class Halo:
    """Each device has one range of an axis, and those of several may overlap: what windows over the axis read.

    A reshard brings it to what reads it so; nothing computes a value in this state but what pads other axes of one
    that is. Zeros stand beyond the ends of the axis where windows reach there, so that an operation that pads needs to
    pad no more on any device.

    Args:
        axis: the axis.
        bounds: the range of each device, in the group's order; one that has neither elements nor zeros has nothing.
        zeros: how many zeros each device has before its range, and after it.
        size: the elements along the axis, of the value.
    """

    axis: int
    bounds: Bounds
    zeros: Bounds
    size: int

    @property
    def segments(self) -> tuple[Bounds, ...]:
        """The ranges, as those of a split axis of one segment."""
        return (self.bounds,)

    def ranges(self, member: int) -> tuple[Range, ...]:
        """Which elements along the axis a device has, by its number, besides zeros."""
        start, stop = self.bounds[member]
        return ((start, stop),) if start < stop else ()

    def length(self, member: int) -> int:
        """How many elements along the axis a device has, with zeros."""
        start, stop = self.bounds[member]
        return stop - start + sum(self.zeros[member])

    def share(self, member: int) -> float:
        """What a device has as a part of the axis, which may be more than all of it."""
        return self.length(member) / max(1, self.size)

    def covers(self, members: int, size: int | str) -> bool:
        """Whether it gives each of so many devices a range of an axis of such a size."""
        are_within = all(0 <= start <= stop <= self.size for start, stop in self.bounds)
        are_counts = all(count >= 0 for one in self.zeros for count in one)
        return len(self.bounds) == len(self.zeros) == members and self.size == size and are_within and are_counts

    def __str__(self) -> str:
        each = zip(self.bounds, self.zeros, strict=True)
        parts = (f"{a}:{b} zeros {c}:{d}" if c or d else f"{a}:{b}" for (a, b), (c, d) in each)
        return f"halo {self.axis} of {self.size} [{', '.join(parts)}]"


@dataclass(frozen=True, slots=True)
class Partial:
    """Every device has a tensor of the value's shape; the sum of these is the value."""

    def __str__(self) -> str:
        return "partial"


State: TypeAlias = Whole | Split | Halo | Partial

Parted: TypeAlias = Split | Halo
"""The states in which devices have but some of an axis."""

WHOLE, PARTIAL = Whole(), Partial()

States: TypeAlias = tuple[State, ...]
"""The state of a value by level of the mesh that its devices form; there is one level."""
