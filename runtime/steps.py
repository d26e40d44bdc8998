"""The steps between runs: each is a function over the slots that hold the values of one call."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from ..compiler.ir.schedule import Copy
from .devices.transfers import fence as fence
from .devices.transfers import start_copy as start_copy

Values = list[Any]
Step = Callable[[Values], None]


def copy(sent: Copy, source: int, target: int, whole: int, event: int | None) -> Step:
    """Starts to send a value, into memory of its own or into its place in the whole that lies in a slot."""
    device, into = sent.target.torch, sent.into

    def start(values: Values) -> None:
        place = None if into is None else values[whole].narrow(-1, into.start, into.length)
        values[target] = start_copy(values[source], device, place)
        if event is not None:
            values[event] = values[target].done

    return start


def wait(slot: int) -> Step:
    """Waits on the device of a value that was sent, and puts the value in the place of what is on its way."""

    def arrive(values: Values) -> None:
        values[slot] = values[slot].wait()

    return arrive


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
