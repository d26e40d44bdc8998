"""Bounds what the allocators of accelerators hold by the budgets of the pipelines that use them.

A plan counts bytes in use. An allocator holds more: freed memory for later use, and the rest of its segments. Where
every pipeline on a device has a budget there, the sum of these bounds all that the process holds while they are called.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Iterator, Mapping
from typing import TYPE_CHECKING

import torch

from ..compiler.devices.device import Device
from ..runtime.devices.accelerator import accelerator_of
from ..runtime.devices.fork import ForkSafeLock

if TYPE_CHECKING:
    from ..conventions.request import Request


_lock = ForkSafeLock()
_calls: dict[object, frozenset[Device]] = {}
"""The devices that are bounded by each call that goes on."""


def budgets_of(pipes: Iterable[tuple[Request, Iterable[Device]]]) -> dict[Device, int]:
    """The sum of the budgets of pipelines by device, of those devices on which each of them that uses it has one.

    ``pipes`` are what was asked for each, and the devices of its components.
    """
    found: dict[Device, int | None] = {}
    for request, devices in pipes:
        limits = request.budget.limits(request.rig)
        for device in {one for one in devices if not one.is_host and one in request.rig and request.rig.present}:
            memory, before = request.rig[device], found.get(device, 0)
            limit = limits.get(device, memory.free)
            has_one = limit < memory.free and before is not None
            found[device] = memory.within(limit).free + (before or 0) if has_one else None
    return {device: nbytes for device, nbytes in found.items() if nbytes is not None}


def others_on(device: Device, held: Mapping[torch.device, int]) -> int:
    """The bytes in use on a device that are not of those ``held`` by pipelines."""
    return max(0, accelerator_of(device.torch).memory()[0] - held.get(device.torch, 0))


@contextlib.contextmanager
def bounded(most: Mapping[Device, int]) -> Iterator[None]:
    """Has the process hold at most so many bytes of devices meanwhile; of calls that overlap the last one bounds."""
    call, devices = object(), frozenset(most)
    try:
        with _lock:
            _calls[call] = devices
            for device, nbytes in most.items():
                accelerator_of(device.torch).bound(nbytes)
        yield
    finally:
        with _lock:
            _calls.pop(call, None)
            for device in devices:
                if not any(device in others for others in _calls.values()):
                    accelerator_of(device.torch).bound(None)
