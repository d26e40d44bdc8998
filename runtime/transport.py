"""What carries values from one device to another: the way of a schedule's copies.

A `Copy` says what goes from where to where, and into which place of a whole; how it goes is for a transport to say. It
gives the executor one function a copy, made once with the code, so that a call decides nothing. The transport here
works inside one process. One between processes sends where the process of ``copy.source`` runs, and receives where that
of ``copy.target`` does, under the number that a copy has in the schedule: both walk the same instructions in the same
order. Passes and schedules know nothing of it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Protocol

import torch

from ..compiler.ir.schedule import Copy
from .devices.recording import spanned
from .devices.transfers import start_copies, start_copy


class Coming(Protocol):
    """A value on its way; ``done`` is an event of the source, or None when the value was read already."""

    done: Any

    def wait(self) -> torch.Tensor:
        """Returns the value on its target, to be used on the current stream there; or the last box of it."""


Send = Callable[[torch.Tensor], Coming]
"""Starts one copy of a value, into memory of its own."""

SendBoxes = Callable[[Sequence[torch.Tensor], Sequence[torch.Tensor]], Coming]
"""Starts one copy of boxes of a value, each into its place in memory on the target."""


class Transport(Protocol):
    """Gives each copy of a schedule a way."""

    def sender(self, copy: Copy) -> Send:
        """The function that starts a copy, from any call and any thread; it keeps the strides of the value."""

    def sender_of_boxes(self, copy: Copy) -> SendBoxes:
        """The same for a copy with landings."""


class InProcess:
    """The devices of this process, over their own links; see `start_copy`."""

    def sender(self, copy: Copy) -> Send:
        """One that knows where the copy goes."""
        target = copy.target.torch
        return _seen(copy, lambda value: start_copy(value, target))

    def sender_of_boxes(self, copy: Copy) -> SendBoxes:
        """One that knows where the copy goes."""
        target = copy.target.torch
        return _seen(copy, lambda boxes, places: start_copies(boxes, target, places))


def _seen(copy: Copy, send: Callable[..., Coming]) -> Callable[..., Coming]:
    return spanned(f"{copy.source} to {copy.target}", str(copy.sent), send, _arrived)


def _arrived(coming: Coming) -> None:
    if coming.done is not None:
        coming.done.synchronize()
