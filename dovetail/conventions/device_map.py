"""diffusers' and accelerate's ``device_map``: module path → device, the most specific path deciding."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from ..compiler.devices.device import Device
from ..compiler.devices.rig import Rig
from ..compiler.errors import UsageError
from ..compiler.spec.residency import Residency
from ..passes.placement.assignment import Assignment, assigned_whole
from .spellings import DeviceLike


def named_devices(device_map: Mapping[str, DeviceLike], rig: Rig) -> dict[str, Device]:
    """The device that each path of a map names, on a rig; the first one is the main device.

    Raises SpecError for a device that is not there, UsageError for an empty map.
    """
    if not device_map:
        raise UsageError('the device map is empty: give each module a device, as in {"": "cuda0", "blocks.1": "cuda1"}')
    return {path: rig.find(device) for path, device in device_map.items()}


def split_by_map(names: Iterable[str], devices: Mapping[str, Device], residency: Mapping[str, Residency]) -> Assignment:
    """What a map gives to weights by name; raises UsageError for one that lies under no path of it."""
    return assigned_whole({name: _home_of(name, devices) for name in names}, residency)


def _home_of(name: str, devices: Mapping[str, Device]) -> Device:
    """The device of the longest path that a weight's name lies under; raises UsageError when it lies under none."""
    path = next((prefix for prefix in _prefixes(name) if prefix in devices), None)
    if path is None:
        raise UsageError(
            f"the device map says nothing of {name}: give it or a module around it a device; "
            f"the empty path stands for all the rest; given are {', '.join(map(repr, devices))}"
        )
    return devices[path]


def _prefixes(name: str) -> list[str]:
    parts = name.split(".")
    return [".".join(parts[:length]) for length in range(len(parts), -1, -1)]
