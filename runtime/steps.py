"""The steps between runs: each is a function over the slots that hold the values of one call."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

from ..compiler.ir.schedule import Destination
from .devices.transfers import fence as fence
from .devices.transfers import fill as fill
from .transport import Send

Values = list[Any]
Step = Callable[[Values], None]


def copy(send: Send, source: int, target: int, event: int | None, place: tuple[int, Destination] | None = None) -> Step:
    """Starts to send a value into memory of its own, or into its place in a whole, which lies in a slot."""

    def start(values: Values) -> None:
        values[target] = send(values[source], **({"into": place[1].of(values[place[0]])} if place else {}))
        if event is not None:
            values[event] = values[target].done

    return start


def fill_part(source: int, whole: int, place: Destination) -> Step:
    """Copies a part into its place in a whole on the same device."""

    def start(values: Values) -> None:
        fill(place.of(values[whole]), values[source])

    return start


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
