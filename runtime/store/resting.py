"""Weights of files that rest in host memory while no device computes with them."""

from __future__ import annotations

from collections.abc import Iterable

import torch

from ...compiler.ir.program import Program, Weight
from ..devices.accelerator import accelerator_of
from ..devices.transfers import moved
from .source import WeightSource

_HOST = torch.device("cpu")


class RestingWeights(WeightSource):
    """Reads each parameter of a source once, and sends it to a device from host memory whenever it is asked for.

    What copies to the device gain by is pinned, as far as there is room. Buffers, which stay on their devices, and
    what the host computes with are those of the source.
    """

    def __init__(self, source: WeightSource) -> None:
        self._source = source
        self._resting: dict[tuple[str, torch.device], torch.Tensor] = {}

    def missing(self, program: Program) -> list[str]:
        """The names of weights that the source has not."""
        return self._source.missing(program)

    def __call__(self, weight: Weight, device: torch.device) -> torch.Tensor:
        """The tensor that holds a weight on a device; raises WeightError when it cannot be had."""
        if not _rests(weight, device):
            return self._source(weight, device)
        found = self._resting.get((weight.name, device))
        if found is None:
            found = accelerator_of(device).pin(self._source(weight, _HOST))
            self._resting[weight.name, device] = found
        return moved(found, device)

    def advise(self, weights: Iterable[Weight]) -> None:
        """Passes on which weights are asked for next, but those that are here."""
        here = {name for name, _ in list(self._resting)}  # another thread may add to them
        self._source.advise(weight for weight in weights if weight.name not in here)

    def release(self, weights: Iterable[Weight], device: torch.device) -> None:
        """Passes on what of the source is used no longer."""
        self._source.release([weight for weight in weights if not _rests(weight, device)], device)

    def settle(self, device: torch.device) -> None:
        """Passes on that all weights of a load were asked for."""
        self._source.settle(device)

    def check(self) -> None:
        """Passes on that what it gave is about to be used."""
        self._source.check()

    def forget(self) -> None:
        """Lets go of what rests in host memory; it is read again."""
        self._resting.clear()
        self._source.forget()


def _rests(weight: Weight, device: torch.device) -> bool:
    return weight.kind == "parameter" and not accelerator_of(device).is_host
