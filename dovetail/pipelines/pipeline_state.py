"""What a pipeline holds besides its components: the tensors of its scheduler, and the device of its own tensors."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

from ..conventions import libraries
from ..conventions.replacements import Replacement
from ..runtime.devices.transfers import moved


def bring_state(pipe: Any) -> None:
    """Brings the tensors that a scheduler keeps to the device of the pipeline."""
    for component in pipe.components.values():
        if not isinstance(component, nn.Module) and hasattr(component, "__dict__"):
            held = {name: value for name, value in vars(component).items() if isinstance(value, torch.Tensor)}
            there = libraries.execution_device(pipe)
            vars(component).update({name: moved(value, there) for name, value in held.items()})


class ExecutionDevice(Replacement):
    """Tells diffusers, in accelerate's place, where the pipeline's own tensors belong."""

    def __init__(self, device: torch.device) -> None:
        self.execution_device = device

    def detach_hook(self, module: nn.Module) -> nn.Module:
        """Does nothing; accelerate calls it when it removes hooks."""
        return module
