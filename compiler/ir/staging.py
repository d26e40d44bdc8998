"""Where the weights of a load lie in the slot that they land in."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from itertools import accumulate

from ..devices.device import Device
from .program import Program
from .schedule import Lifetime, Load, Schedule
from .split import pieces
from .weight import Weight

ALIGNMENT = 256
"""Every weight begins at a multiple of so many bytes, as in memory of its own: kernels are chosen by that too."""


def offsets(weights: Sequence[Weight]) -> tuple[list[int], int]:
    """At which byte of a slot each weight begins, and how many bytes all of them take; a number takes none."""
    ends = list(accumulate(map(aligned, weights), initial=0))
    return ends[:-1], ends[-1]


def aligned(weight: Weight) -> int:
    """The bytes from where a weight begins in a slot to where the next one does."""
    return -(-weight.device_bytes // ALIGNMENT) * ALIGNMENT


def slot_bytes(program: Program, schedule: Schedule | None = None) -> dict[Device, list[int]]:
    """The bytes of each slot of each device that is filled again and again: those of the largest load that lands there.

    The schedule is that of the program, or another one over its weights.
    """
    known = pieces(program)
    found: dict[Device, dict[int, int]] = defaultdict(dict)
    for one in schedule or program.schedule or ():
        if isinstance(one, Load) and one.lifetime is Lifetime.STAGE:
            slots = found[one.device]
            nbytes = offsets([known[name][0] for name in one.weights])[1]
            slots[one.slot] = max(slots.get(one.slot, 0), nbytes)
    return {device: [slots[number] for number in sorted(slots)] for device, slots in found.items()}
