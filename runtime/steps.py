"""The steps between runs: each is a function over the slots that hold the values of one call."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

from .devices.transfers import fence as fence
from .devices.transfers import fill as fill
from .transport import Send

Values = list[Any]
Step = Callable[[Values], None]
Ranges = Sequence[tuple[int, int, int]]
"""Axes with a first index and a number of indices."""


def copy(send: Send, source: int, target: int, event: int | None, place: tuple[int, Ranges] | None = None) -> Step:
    """Starts to send a value into memory of its own, or into its place in a whole, which lies in a slot."""

    def start(values: Values) -> None:
        values[target] = send(values[source], **({"into": part(values[place[0]], place[1])} if place else {}))
        if event is not None:
            values[event] = values[target].done

    return start


def fill_part(source: int, whole: int, ranges: Ranges) -> Step:
    """Copies a part into its place in a whole on the same device."""

    def start(values: Values) -> None:
        fill(part(values[whole], ranges), values[source])

    return start


def part(whole: torch.Tensor, ranges: Ranges) -> torch.Tensor:
    """A box of a whole: some indices along axes."""
    for axis, start, length in ranges:
        whole = whole.narrow(axis, start, length)
    return whole


def wait(slot: int) -> Step:
    """Waits on the device of a value that was sent, and puts the value in the place of what is on its way."""

    def arrive(values: Values) -> None:
        values[slot] = values[slot].wait()

    return arrive


def landed(slot: int) -> Step:
    """Waits for a part that was sent into its place in a whole."""

    def arrive(values: Values) -> None:
        values[slot].wait()
        values[slot] = None

    return arrive


def allocate(slot: int, sizes: Callable[[Values], Sequence[int]], dtype: torch.dtype, device: torch.device) -> Step:
    """Sets memory aside for a whole, which holds nothing yet; ``sizes`` may look them up in other values."""

    def make(values: Values) -> None:
        values[slot] = torch.empty(sizes(values), dtype=dtype, device=device)

    return make


def free(slot: int) -> Step:
    """Lets go of a value."""

    def drop(values: Values) -> None:
        values[slot] = None

    return drop


def release(slot: int) -> Step:
    """Lets go of the weights of a load."""

    def let_go(values: Values) -> None:
        values[slot].release()
        values[slot] = None

    return let_go
