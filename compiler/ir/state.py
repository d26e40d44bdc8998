"""What each device of a group has of a value: all of it, some of an axis, or a term of a sum.

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
class Partial:
    """Every device has a tensor of the value's shape; the sum of these is the value."""

    def __str__(self) -> str:
        return "partial"


State: TypeAlias = Whole | Split | Partial

WHOLE, PARTIAL = Whole(), Partial()

States: TypeAlias = tuple[State, ...]
"""The state of a value by level of the mesh that its devices form; there is one level."""
