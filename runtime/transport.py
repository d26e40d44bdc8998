"""What carries values from one device to another: the way of a schedule's copies.

A `Copy` says what goes from where to where, and into which place of a whole; how it goes is for a transport to say. It
gives the executor one function a copy, made once with the code, so that a call decides nothing. The transport here
works inside one process. One between processes sends where the process of ``copy.source`` runs, and receives where that
of ``copy.target`` does, under the number that a copy has in the schedule: both walk the same instructions in the same
order. Passes and schedules know nothing of it.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, Protocol

import torch

from ..compiler.ir.schedule import Copy
from .devices.recording import spanned
from .devices.transfers import start_copy


class Coming(Protocol):
    """A value on its way; ``done`` is an event of the source, or None when the value was read already."""

    done: Any

    def wait(self) -> torch.Tensor:
        """Returns the value on its target, to be used on the current stream there, in its place if it has one."""


Send = Callable[..., Coming]
"""Starts one copy: ``send(value)``, or ``send(value, into=place)`` where it has a place in memory on the target."""


class Transport(Protocol):
    """Gives each copy of a schedule a way."""

    def sender(self, copy: Copy) -> Send:
        """The function that starts a copy, from any call and any thread; it keeps the strides of the value."""


class InProcess:
    """The devices of this process, over their own links; see `start_copy`."""

    def sender(self, copy: Copy) -> Send:
        """One that knows where the copy goes."""
        send = partial(start_copy, target=copy.target.torch)
        return spanned(f"{copy.source} to {copy.target}", str(copy.sent), send, _arrived)


def _arrived(coming: Coming) -> None:
    if coming.done is not None:
        coming.done.synchronize()
