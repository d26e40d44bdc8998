"""A part of a weight: ranges along one of its axes."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import torch

from .state import Range


@dataclass(frozen=True, slots=True)
class Part:
    """The elements in ranges along one axis, in order, and all of them along the others.

    The ranges ascend, and something lies between each and the next (`merged`); one that is empty stands alone.
    """

    axis: int
    ranges: tuple[Range, ...]

    @property
    def length(self) -> int:
        """How many elements it has along the axis."""
        return sum(stop - start for start, stop in self.ranges)

    def shape(self, whole: Sequence[int]) -> tuple[int, ...]:
        """Its shape, by that of the whole."""
        return (*whole[: self.axis], self.length, *whole[self.axis + 1 :])

    def lies_in(self, whole: Sequence[int]) -> bool:
        """Whether something of such a shape has it."""
        return self.axis < len(whole) and self.ranges[-1][1] <= whole[self.axis]

    def of(self, whole: torch.Tensor) -> torch.Tensor:
        """The part of a tensor: a view where it is one range, else the ranges behind one another in new memory."""
        views = [whole[(slice(None),) * self.axis + (slice(*one),)] for one in self.ranges]
        return views[0] if len(views) == 1 else torch.cat(views, self.axis)

    def part(self, ranges: Iterable[Range]) -> Part:
        """A part of the part, along the same axis, as one of the whole."""
        wanted, found, at = tuple(ranges), list[Range](), 0
        for first, last in self.ranges:
            end = at + last - first
            found += [(first + max(start, at) - at, first + min(stop, end) - at) for start, stop in wanted]
            at = end
        return Part(self.axis, merged(found))

    def overlaps(self, other: Part) -> bool:
        """Whether some element is in both of two parts of one tensor, which has elements along the other axes."""
        if self.axis != other.axis:
            return bool(self.length and other.length)
        both = ((one, two) for one in self.ranges for two in other.ranges)
        return any(max(one[0], two[0]) < min(one[1], two[1]) for one, two in both)

    def __str__(self) -> str:
        ranges = "+".join(f"{start}:{stop}" for start, stop in self.ranges)
        return f"[{':, ' * self.axis}{ranges}]"


def merged(ranges: Sequence[Range]) -> tuple[Range, ...]:
    """Ranges that ascend, without the empty ones, those that meet made one; an empty one where nothing is left.

    >>> merged([(0, 2), (2, 5), (6, 6), (7, 9)]), merged([(4, 4)])
    (((0, 5), (7, 9)), ((4, 4),))
    """
    found: list[Range] = []
    for start, stop in ranges:
        if found and start < stop and found[-1][1] == start:
            found[-1] = found[-1][0], stop
        elif start < stop:
            found.append((start, stop))
    return tuple(found) or (next((one for one in ranges if one[0] == one[1]), (0, 0)),)


def joined(parts: Mapping[Part, torch.Tensor]) -> torch.Tensor:
    """The tensor of which these are parts: along one of their axes they have each element of it, some of them twice."""
    for axis in dict.fromkeys(part.axis for part in parts):
        pieces = {part: tensor for part, tensor in parts.items() if part.axis == axis}
        size = next((one.shape[axis] for part, one in parts.items() if part.axis != axis), None)
        found = _in_a_row(axis, pieces)
        if found is not None and size in (None, found.shape[axis]):
            return found
    raise AssertionError(f"the parts of a tensor have gaps: {', '.join(map(str, parts))}")


def _in_a_row(axis: int, parts: Mapping[Part, torch.Tensor]) -> torch.Tensor | None:
    """What parts along one axis have, without what several have; None if there is a gap."""
    pieces: dict[Range, torch.Tensor] = {}
    for part, tensor in parts.items():
        lengths = [stop - start for start, stop in part.ranges]
        pieces |= zip(part.ranges, tensor.split(lengths, axis), strict=True)
    end, found = 0, list[torch.Tensor]()
    for start, stop in sorted(pieces):
        if start > end:
            return None
        if stop > end:
            found.append(pieces[start, stop].narrow(axis, end - start, stop - end))
            end = stop
    return torch.cat(found, axis) if found else next(iter(pieces.values()))
