"""What a pipeline holds besides its components: the tensors of its scheduler, and the device of its own tensors."""

from __future__ import annotations

import weakref
from typing import Any

import torch
from torch import nn

from ..compiler.errors import UsageError
from ..components.calls import answering
from ..conventions import libraries
from ..conventions.replacements import Replacement
from ..runtime.devices.transfers import moved
from ..runtime.store.origin import HOST


def bring_state(pipe: Any, to: torch.device | None = None) -> None:
    """Brings the tensors that a scheduler keeps to the device of the pipeline; or those on accelerators elsewhere."""
    for component in pipe.components.values():
        if not isinstance(component, nn.Module) and hasattr(component, "__dict__"):
            held = {name: value for name, value in vars(component).items() if isinstance(value, torch.Tensor)}
            there = to or libraries.execution_device(pipe)
            if there.type == "meta":  # of a pipeline without weights, whose scheduler computes all the same
                continue
            brought = {name: value for name, value in held.items() if to is None or value.device.type != HOST.type}
            vars(component).update({name: moved(value, there) for name, value in brought.items()})


_undone: weakref.WeakSet[Any] = weakref.WeakSet()
"""Pipelines that were undone and have components that another one has compiled: where these are, their state is."""


def bring_state_home(pipe: Any) -> None:
    """Brings the state of a pipeline that was undone to where it computes now, and of those that were before it."""
    _undone.add(pipe)
    for one in list(_undone):
        bring_state(one)
        if not any(isinstance(part, nn.Module) and answering(part) for part in one.components.values()):
            _undone.discard(one)


class ExecutionDevice(Replacement):
    """Tells diffusers, in accelerate's place, where the pipeline's own tensors belong.

    While it is there nobody else moves the component: whatever of accelerate offloads or dispatches a model, or takes
    hooks off it, asks the hook that is there to give way first.
    """

    def __init__(self, device: torch.device) -> None:
        self.execution_device = device

    def detach_hook(self, module: nn.Module) -> nn.Module:
        """Raises UsageError."""
        raise UsageError(
            f"accelerate cannot move this {type(module).__name__}, or take hooks off it: dovetail placed it as a "
            "component of a compiled pipeline: keep its weights in host memory instead (params_backend=cpu), or "
            "call undo() of that pipeline first"
        )

    init_hook = detach_hook


def refuse_hooks(module: nn.Module) -> None:
    """Raises UsageError for a component of a compiled pipeline, or a part of one, that accelerate would move."""
    component = answering(module)
    hook = None if component is None else vars(component.module).get(libraries.HOOK)
    if isinstance(hook, ExecutionDevice):
        hook.detach_hook(module)


def take_hook_out(module: nn.Module) -> None:
    """Has a module without a hook of ours, or of accelerate's, whatever became of them meanwhile."""
    is_ours = isinstance(vars(module).pop(libraries.HOOK, None), ExecutionDevice)
    if not is_ours or any(libraries.HOOK in vars(part) for part in module.modules()):
        libraries.take_hooks_off(module)
