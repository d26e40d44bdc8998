"""Where the data of weights comes from when a schedule loads them."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from contextlib import AbstractContextManager
from typing import Protocol

import torch
from torch import nn

from ...compiler.devices.device import Device
from ...compiler.ir.program import Program
from ...compiler.ir.weight import Weight
from .kept import KeptLoad
from .staging import SlotSizes, StagedLoad


class WeightSource(Protocol):
    """Gives the data of a program's weights on their devices."""

    def missing(self, program: Program) -> list[str]:
        """The names of weights that are not here, or have no data."""

    def __call__(self, weight: Weight, device: torch.device) -> torch.Tensor:
        """The tensor that holds the weight on a device, as it is stored: a part's numbers, a packed weight's bytes.

        Raises WeightError when it cannot be had.
        """

    def call(self, sizes: SlotSizes) -> AbstractContextManager[None]:
        """A call, for whose loads there are slots of so many bytes on each device meanwhile."""

    def stage(self, weights: Sequence[Weight], device: Device, slot: int, what: str = "") -> StagedLoad:
        """Starts to bring weights into a slot of a device, on the device's lane, for the call that goes on."""

    def keep(self, weights: Sequence[Weight], device: Device, slot: int, what: str = "") -> KeptLoad:
        """Weights in a slot of a device that stays filled until a phase ends; where it is empty, starts to fill it."""

    def is_filled(self, device: Device, slot: int) -> bool:
        """Whether there is something in a slot that is filled once, or on its way there."""

    def advise(self, weights: Iterable[Weight]) -> None:
        """Hears which weights are asked for next; a source that reads files can begin."""
        return

    def check(self) -> None:
        """Raises WeightError when what it gave is not what it was; cheap enough for every call."""
        return

    def forget(self) -> None:
        """Lets go of what it keeps besides what it gave; it is made again."""
        return


def tensors_of_module(module: nn.Module) -> dict[str, torch.Tensor]:
    """All parameters and buffers of a module, under every name they have; walked here, for it is asked for often."""
    parameters: dict[str, torch.Tensor] = {}
    buffers: dict[str, torch.Tensor] = {}
    _gather(module, "", parameters, buffers)
    return {**parameters, **buffers}


def _gather(
    module: nn.Module, prefix: str, parameters: dict[str, torch.Tensor], buffers: dict[str, torch.Tensor]
) -> None:
    for found, held in (parameters, module._parameters), (buffers, module._buffers):
        for name, tensor in held.items():
            if tensor is not None:
                found[prefix + name] = tensor
    for name, child in module._modules.items():
        if child is not None:
            _gather(child, f"{prefix}{name}.", parameters, buffers)
