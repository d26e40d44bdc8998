"""Devices that were asked for and get nothing of a plan."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence

from ..compiler.devices.device import Device
from ..compiler.units import counted
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


def unused_gpus(generation: Generation) -> str:
    """A line for the GPUs that nothing of a plan is on; empty where there are none."""
    names = ", ".join(str(one) for one in generation.rig.gpus if one not in generation.peaks())
    return f"nothing is placed on {names}: dovetail plan says why" if names else ""


def tell_of_idle(lines: Sequence[str], told: set[str], level: int = logging.WARNING) -> None:
    """Says that devices get nothing, what was ``told`` of a pipeline once: a warning where they were named."""
    for line in lines:
        if line not in told:
            told.add(line)
            logger.log(level, "%s", line)
