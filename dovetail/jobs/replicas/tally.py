"""What several replicas say of themselves, as one."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Mapping

from ..facts import DeviceFacts, Facts


class Tally:
    """Adds up what replicas say after each job."""

    def __init__(self) -> None:
        self._changing = threading.Lock()
        self._phases: Counter[str] = Counter()
        self._cache: Counter[str] = Counter()
        self._devices: dict[str, Mapping[str, DeviceFacts]] = {}

    def add(self, replica: str, facts: Facts) -> None:
        """Takes what a replica says after a job."""
        with self._changing:
            for name, seconds in facts.phases.items():
                self._phases[name] += seconds  # type: ignore[assignment]  # a counter of seconds
            self._cache.update(facts.cache)
            self._devices[replica] = facts.devices

    def taken(self) -> Facts:
        """What was done since this was asked last, and how full devices are: what several have of one is added up."""
        with self._changing:
            devices: dict[str, DeviceFacts] = {}
            for name, one in (item for some in self._devices.values() for item in some.items()):
                devices[name] = _added(devices.get(name, DeviceFacts()), one)
            found = Facts(dict(self._phases), devices, dict(self._cache))
            self._phases, self._cache = Counter(), Counter()
        return found


def _added(one: DeviceFacts, other: DeviceFacts) -> DeviceFacts:
    """What two processes have of one device, of which each may use its part."""
    return DeviceFacts(
        one.used + other.used, one.peak + other.peak, one.planned + other.planned, one.free + other.free
    )  # fmt: skip
