"""The steps between segments: each is a function over the slots that hold the values of one call."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from .devices.transfers import start_copy as start_copy

Slots = list[Any]
Step = Callable[[Slots], None]


def copy_step(source: int, target: int, device: torch.device, landing: tuple[int, int, int] | None = None) -> Step:
    """Starts to send a value, into memory of its own or, by slot, first column and width, into that of a whole."""

    def copy(slots: Slots) -> None:
        slots[target] = start_copy(slots[source], device)

    def land(slots: Slots) -> None:
        assert landing is not None
        whole, start, length = landing
        slots[target] = start_copy(slots[source], device, slots[whole].narrow(-1, start, length))

    return copy if landing is None else land


def wait_step(slot: int) -> Step:
    """Waits on the device of a value that was sent, and puts the value in the place of what is on its way."""

    def wait(slots: Slots) -> None:
        slots[slot] = slots[slot].wait()

    return wait


def fence_step(slot: int, source: torch.device) -> Step:
    """Waits on the device that sent a value."""

    def fence(slots: Slots) -> None:
        slots[slot].fence(source)

    return fence


def free_step(slot: int) -> Step:
    """Lets go of a value."""

    def free(slots: Slots) -> None:
        slots[slot] = None

    return free
