"""The weights of adapters, which may be exchanged while all others stay where they are."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import torch

from ...compiler.errors import WeightError
from ...compiler.ir.program import Program, Weight
from .source import WeightSource, check_matches, on_device


class WithAdapters(WeightSource):
    """A source of weights that has those of adapters besides.

    ``held`` maps the names of whole weights to tensors on any device; a scale is a tensor of one number.
    """

    def __init__(self, source: WeightSource | None, held: Mapping[str, torch.Tensor]) -> None:
        self._source = source
        self.held = held

    def missing(self, program: Program) -> list[str]:
        """The names of weights that are not here, or have no data."""
        others = self._source.missing(program) if self._source else list(program.weights)
        return [name for name in others if program.weights[name].whole not in self.held]

    def __call__(self, weight: Weight, device: torch.device) -> torch.Tensor:
        """The tensor that holds a weight on a device; raises WeightError when it cannot be had."""
        if weight.kind == "adapter" and weight.whole in self.held:
            tensor = self.held[weight.whole]
            check_matches(weight, tensor)
            return tensor if weight.is_number else on_device(weight, tensor, device)
        if self._source is None:
            raise WeightError(f"weight {weight.name} is not here: load the weights first")
        return self._source(weight, device)

    def requires_grad(self, weight: Weight) -> bool:
        """Whether the tensor of a weight requires a gradient; that of an adapter as its form says."""
        if self._source is None or weight.kind == "adapter":
            return weight.requires_grad
        return self._source.requires_grad(weight)

    def advise(self, weights: Iterable[Weight]) -> None:
        """Passes on which weights are asked for next."""
        if self._source:
            self._source.advise(weights)

    def settle(self, device: torch.device) -> None:
        """Passes on that all weights of a load were asked for."""
        if self._source:
            self._source.settle(device)

    def check(self) -> None:
        """Passes on that what it gave is about to be used."""
        if self._source:
            self._source.check()

    def forget(self) -> None:
        """Passes on that what is kept besides may go."""
        if self._source:
            self._source.forget()

    def release(self, weights: Iterable[Weight], device: torch.device) -> None:
        """Passes on what is used no longer."""
        if self._source:
            self._source.release(weights, device)
