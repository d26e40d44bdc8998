"""Where a weight is kept while nobody computes with it."""

from __future__ import annotations

from collections.abc import Sequence
from enum import Enum

from .devices import HOST as _HOST
from .devices import Device


class Residency(Enum):
    """Where a weight is kept while nobody computes with it; the value is the word for it in specs and plans.

    On the ``DEVICE`` that reads it, in the memory of the ``HOST``, or on ``DISK``, in its file.
    """

    DEVICE = "device"
    HOST = _HOST
    DISK = "disk"

    def stages_on(self, device: Device) -> bool:
        """Whether a weight that is kept so must be brought to a device for each reading."""
        return self is Residency.DISK or (self is Residency.HOST and not device.is_host)


def evenly(sizes: Sequence[int], nbytes: int) -> list[bool]:
    """Which of some weights, of these sizes in order, make up so many bytes at most, spread evenly over all.

    >>> evenly([4, 4, 1, 4, 4], 9)
    [False, True, False, False, True]
    """
    part = min(1.0, nbytes / max(1, sum(sizes)))
    due, taken, found = 0.0, 0, []
    for size in sizes:
        due += part * size
        takes = due >= size * (1 - 1e-9) and taken + size <= nbytes
        found.append(takes)
        due, taken = (due - size, taken + size) if takes else (due, taken)
    return found
