"""Where the data of weights comes from when a schedule loads them."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from contextlib import AbstractContextManager
from typing import Protocol

import torch
from torch import nn

from ...compiler.ir.program import Program
from ...compiler.ir.weight import Weight
from ..devices.accelerator import Accelerator, Event, accelerator_of
from .staging import SlotSizes, StagedLoad


class Ticket:
    """Weights on their way to a device.

    Args:
        tensors: the tensors that will hold them, in the order in which they were asked for.
        there: the device.
        done: the event after which their bytes are there, or None where they are there already.
    """

    __slots__ = ("_done", "_tensors", "_there")

    def __init__(self, tensors: list[torch.Tensor], there: Accelerator, done: Event) -> None:
        self._tensors = tensors
        self._there = there
        self._done = done

    def wait(self) -> list[torch.Tensor]:
        """The tensors in order, to be used on the device's current stream, which waits for them."""
        stream = self._there.current_stream()
        self._there.wait(stream, self._done)
        for tensor in self._tensors:
            if tensor.device == self._there.device:
                self._there.keep(tensor, stream)
        return self._tensors


class WeightSource(Protocol):
    """Gives the data of a program's weights on their devices."""

    def missing(self, program: Program) -> list[str]:
        """The names of weights that are not here, or have no data."""

    def __call__(self, weight: Weight, device: torch.device) -> torch.Tensor:
        """The tensor that holds the weight on a device, as it is stored: a part's numbers, a packed weight's bytes.

        Raises WeightError when it cannot be had.
        """

    def start(self, weights: Sequence[Weight], device: torch.device) -> Ticket:
        """Starts to bring weights to a device, on its own stream for weights, and does not wait for them.

        They lie in memory of that stream, so that nothing that the device computes now delays them. What comes from
        memory that is not pinned, or from files, is read before this returns. Raises what a call raises.
        """
        there = accelerator_of(device)
        stream = there.side_stream("weights")
        with there.use(stream):
            tensors = [self(weight, device) for weight in weights]
            done = there.record(stream)
        return Ticket(tensors, there, done)

    def call(self, sizes: SlotSizes) -> AbstractContextManager[None]:
        """A call, for whose loads there are slots of so many bytes on each device meanwhile."""

    def stage(self, weights: Sequence[Weight], device: torch.device, slot: int, what: str = "") -> StagedLoad:
        """Starts to bring weights into a slot of a device, on the device's lane, for the call that goes on."""

    def advise(self, weights: Iterable[Weight]) -> None:
        """Hears which weights are asked for next; a source that reads files can begin."""
        return

    def settle(self, device: torch.device) -> None:
        """Hears that it was asked for all weights of a load, which a call is about to use."""
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
