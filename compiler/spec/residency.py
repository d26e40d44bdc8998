"""Where a weight is kept while nobody computes with it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum

from ..devices.device import HOST as _HOST
from ..devices.device import Device


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


@dataclass(frozen=True)
class Amounts:
    """How many bytes of a component's weights rest elsewhere than most: on their devices for good, or in host memory.

    Both are spread evenly over all weights. ``in_memory`` says something of weights that rest on disk alone.
    """

    on_device: int = 0
    in_memory: int = 0

    def __bool__(self) -> bool:
        """Whether any weight rests elsewhere."""
        return bool(self.on_device or self.in_memory)

    def of(self, sizes: Sequence[int], residency: Residency) -> list[Residency]:
        """Where each of some weights rests, of these sizes in order, most of them where ``residency`` says.

        >>> Amounts(on_device=8).of([4, 4, 4, 4], Residency.HOST)[:2]
        [<Residency.HOST: 'cpu'>, <Residency.DEVICE: 'device'>]
        """
        if residency is Residency.DEVICE:
            return [residency] * len(sizes)
        stays = evenly(sizes, self.on_device)
        in_memory = self.in_memory if residency is Residency.DISK else 0
        left = [size for size, here in zip(sizes, stays, strict=True) if not here]
        on_host = iter(evenly(left, in_memory))
        return [Residency.DEVICE if here else Residency.HOST if next(on_host) else residency for here in stays]


ALIKE = Amounts()
"""All weights of a component rest in one place."""


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
