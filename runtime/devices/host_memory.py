"""How much memory the host has."""

from __future__ import annotations

from ...compiler.devices.probe import probe_host


def host_memory() -> int:
    """Returns the bytes of memory that the host has, within the limits of the container this runs in."""
    return probe_host()[0]
