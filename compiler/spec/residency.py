"""Where a weight is kept while nobody computes with it."""

from __future__ import annotations

from enum import Enum

from .devices import HOST as _HOST
from .devices import Device


class Residency(Enum):
    """Where a weight is kept while nobody computes with it; the value is the word for it in specs and plans.

    On the ``DEVICE`` that reads it, in the memory of the ``HOST``, or on ``DISK``, in its file.
    """

    DEVICE = "device"
    HOST = _HOST
    DISK = "disk"

    def stages_on(self, device: Device) -> bool:
        """Whether a weight that is kept so must be brought to a device for each reading."""
        return self is Residency.DISK or (self is Residency.HOST and not device.is_host)
