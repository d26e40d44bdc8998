"""Has simulated devices be out of memory, in tests."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

from dovetail.runtime.sim.ledger import SimDevice
from dovetail.runtime.store import store


class Injected:
    """Has simulated devices be out of memory at chosen requests; counts all of them, or all but those for weights.

    A request that is not counted is at half a number more than the one before.
    """

    def __init__(self, monkeypatch: pytest.MonkeyPatch, fails: Callable[[float], bool] = lambda _: False) -> None:
        self.count, self.fails = 0, fails
        self.counts_weights, self._fetching = True, 0
        original = SimDevice.require

        def require(device: SimDevice, size: int) -> None:
            is_counted = self.counts_weights or not self._fetching
            self.count += is_counted
            if self.fails(self.count if is_counted else self.count + 0.5):
                raise torch.OutOfMemoryError(f"sim{device.index} is out of memory: injected at {self.count}")
            original(device, size)

        monkeypatch.setattr(SimDevice, "require", require)
        monkeypatch.setattr(store, "fetched_weight", self._noted(store.fetched_weight))

    def _noted(self, fetched: Callable[..., Any]) -> Callable[..., Any]:
        def noted(*args: Any) -> Any:
            self._fetching += 1
            try:
                return fetched(*args)
            finally:
                self._fetching -= 1

        return noted
