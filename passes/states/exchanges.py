"""What a change of state takes: the bytes that each device sends to each other one, and the seconds.

The kind of an exchange follows from the two states. The bytes are those of the boxes that `landings` has devices send,
without the boxes: states are compared by the million. Each device sends what another one lacks, straight to it: of a
sum each device gets the terms of its part, and where all need all of it, sends its part of the sum on; of a small one
it gets all terms, so that nothing is sent on.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property

import torch

from ...compiler.devices.device import Device
from ...compiler.devices.speeds import Speeds
from ...compiler.ir.state import PARTIAL, WHOLE, Halo, Parted, Range, Split, State
from .shares import parts_of_sum, state_of_sum
from .short_terms import SHORT, can_be_short

Flow = tuple[tuple[int, ...], ...]
"""The bytes that each device sends, by number, to each by number."""


@dataclass(frozen=True)
class Group:
    """Devices that work at once, with the share of each in what is split.

    Args:
        devices: those of the group; the first has inputs and outputs.
        shares: a part of the work for each, in integers of which some may be 0.
        speeds: of the devices, and of the ways between them.
        has_short_terms: whether terms of float32 sums cross in bfloat16.
    """

    devices: tuple[Device, ...]
    shares: tuple[int, ...]
    speeds: Speeds = field(hash=False)
    has_short_terms: bool = False

    def __len__(self) -> int:
        return len(self.devices)

    def term_size(self, sizes: Sequence[int], dtype: torch.dtype) -> int:
        """The bytes of an element of a term of a sum as it crosses."""
        return SHORT.itemsize if self.has_short_terms and can_be_short(sizes, dtype) else dtype.itemsize

    @cached_property
    def rates(self) -> Mapping[tuple[int, int], tuple[float, tuple[str, ...]]]:
        """From each device to each other, by number: bytes a second, and all that the way takes."""
        ways = [(one, other) for one in range(len(self)) for other in range(len(self)) if one != other]
        return {(one, other): self._way(self.devices[one], self.devices[other]) for one, other in ways}

    def _way(self, one: Device, other: Device) -> tuple[float, tuple[str, ...]]:
        return self.speeds.crossing(one, other), tuple(self.speeds.taken(one, other))

    def seconds(self, flow: Flow, exchanges: int = 1) -> float:
        """The time in which all is sent: of the device, or the shared root, that takes longest, and to begin."""
        taken: dict[str, float] = defaultdict(float)
        for (one, other), (rate, lanes) in self.rates.items():
            for lane in lanes:
                taken[lane] += flow[one][other] / rate
        return exchanges * self.speeds.latency + max(taken.values(), default=0.0) if any(map(any, flow)) else 0.0


def kind_of(source: State, target: State) -> str:
    """The name of what changes one state into another."""
    if source == target:
        return "nothing"
    if source == WHOLE:
        return "local slices"
    if isinstance(target, Halo) and isinstance(source, Split) and source.axis == target.axis:
        return "halo"
    if source == PARTIAL:
        return "all-reduce" if target == WHOLE else "reduce-scatter"
    return "all-gather" if target == WHOLE else "all-to-all"


def can_change(source: State, target: State) -> bool:
    """Whether there is an exchange from one state to another: nothing becomes terms of a sum, a halo nothing else."""
    return source == target or (target != PARTIAL and not isinstance(source, Halo))


def exchanges_of(group: Group, source: State, target: State, shape: Sequence[int], itemsize: int) -> int:
    """How many exchanges follow one another: parts of a sum that is not small are added up, and then gathered."""
    is_in_parts = shape and (source, target) == (PARTIAL, WHOLE) and state_of_sum(shape, itemsize, len(group)) != WHOLE
    return 2 if is_in_parts else 1


def flow_of(
    group: Group, source: State, target: State, shape: Sequence[int], itemsize: int, of_term: int | None = None
) -> Flow:
    """The bytes that devices send one another of a tensor that is to be in another state.

    ``of_term`` are those of an element of a term of a sum, where they are not those of an element of the sum.
    """
    count, total = len(group), itemsize
    for size in shape:
        total *= size
    if source in (target, WHOLE):
        return ((0,) * count,) * count
    if isinstance(source, Split) and isinstance(target, Parted):
        return tuple(
            tuple(0 if one == other else _common(source, target, one, other, shape, total) for other in range(count))
            for one in range(count)
        )
    if not shape:
        return ((0,) * count,) * count  # of a sum without axes nobody has a part: it is no sum of terms
    if (source, target) == (PARTIAL, WHOLE) and state_of_sum(shape, itemsize, count) == WHOLE:
        return _apart(((total,) * count,) * count)
    split = next((one for one in (source, target) if isinstance(one, Parted)), parts_of_sum(shape, count))
    parts = _parts(split, total)
    if source == PARTIAL:
        back, terms = int(target == WHOLE), _parts(split, total // itemsize * (of_term or itemsize))
        return _apart(tuple(tuple(terms[j] + back * parts[i] for j in range(count)) for i in range(count)))
    return _apart(tuple((parts[i],) * count for i in range(count)))


def _apart(flow: Flow) -> Flow:
    return tuple(tuple(0 if i == j else n for j, n in enumerate(row)) for i, row in enumerate(flow))


def _parts(state: Parted, total: int) -> list[int]:
    """The bytes of each device's part of a tensor."""
    return [total * state.length(member) // max(1, state.size) for member in range(len(state.segments[0]))]


def _common(source: Split, target: Parted, one: int, other: int, shape: Sequence[int], total: int) -> int:
    """The bytes that one device has and another one needs."""
    if source.axis != target.axis:
        elements = source.size * target.size
        have = sum(stop - start for start, stop in target.ranges(other))
        return total * source.length(one) * have // max(1, elements)
    both = sum(_overlap(a, b) for a in source.ranges(one) for b in target.ranges(other))
    return total * both // max(1, shape[source.axis])


def _overlap(one: Range, other: Range) -> int:
    return max(0, min(one[1], other[1]) - max(one[0], other[0]))
