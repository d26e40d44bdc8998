"""Devices that were asked for and get nothing of a plan."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from functools import cache

from ..compiler.spec.devices import Device
from ..compiler.spec.units import counted
from .generation import Generation

logger = logging.getLogger(__name__)


def idle_devices(generation: Generation, asked: Mapping[str, Sequence[Device]]) -> list[str]:
    """A line for each component of which some devices that were asked for get nothing, and have nothing else either.

    Args:
        asked: the devices that were named for each component.
    """
    used = set(generation.peaks())
    found = []
    for name, devices in asked.items():
        calls = [call for call in generation.calls if call.component == name]
        idle = [device for device in devices if device not in used]
        if calls and idle:
            blocks = max(len(call.program.blocks) for call in calls)
            why = (
                f"it has {counted(blocks, 'block')} for {len(devices)} devices"
                if blocks < len(devices)
                else "none of its blocks is placed there"
            )
            found.append(f"{', '.join(map(str, idle))} {'get' if len(idle) > 1 else 'gets'} nothing of {name}: {why}")
    return found


@cache
def tell_of_idle(line: str) -> None:
    """Says once that devices get nothing."""
    logger.warning("%s", line)
