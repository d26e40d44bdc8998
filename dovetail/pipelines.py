"""Compiles a whole diffusers pipeline: the calls of its components are swapped, its objects stay."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import nn

from .compiled import CompiledModule
from .compiler.devices import Device, Rig
from .compiler.errors import UsageError
from .compiler.program import Program
from .compiler.spec import role_of_component
from .component import Component
from .passes.base import Callback, Pass, PassManager
from .passes.pipeline import default_passes, parse_passes
from .pipeline_plan import check_names, count_held_as_free, is_named, modules_of, share_out
from .request import Request, one_backend
from .residence import Reader

_MOVES = ("to", "enable_model_cpu_offload", "enable_sequential_cpu_offload", "enable_group_offload")
_MARK = "_dovetail"


def compile_pipeline(
    pipe: Any,
    backend: Any = None,
    *,
    split_mode: Any = "layer",
    tensor_split: Any = None,
    max_vram: Any = None,
    max_memory: Mapping[Any, Any] | None = None,
    device_map: Any = None,
    rig: Rig | str | None = None,
    dynamic_shapes: Mapping[str, Mapping[str, Any]] | None = None,
    passes: str | Sequence[Pass] | None = None,
    callbacks: Sequence[Callback] = (),
) -> CompiledPipeline:
    """Compiles every component of a diffusers pipeline over the devices that were asked for, and changes no bit.

    The pipeline stays the object it is and is called as before. A component is compiled at its first call of each kind
    (shapes, dtypes, arguments that are no tensors), and its weights go to their devices then, once.

    Args:
        pipe: any diffusers pipeline; inference only.
        backend: devices by role or component: ``"diffusion=cuda0&cuda1,te=cuda1,vae=cuda0"``, or a dict.
        split_mode, tensor_split, max_vram, max_memory, rig, passes, callbacks: as for compile, and per role too.
        device_map: diffusers' spelling of ``backend``: ``"balanced"``, or a dict of component → device.
        dynamic_shapes: for components that shall take other sizes without compiling again, component → as torch.export
            takes it.

    Returns:
        A handle that is called as the pipeline is, knows its components and undoes everything.

    Raises:
        SpecError: a spec is wrong; the message points at the place.
        UsageError: the pipeline is compiled or offloaded already.
    """
    return CompiledPipeline(
        pipe,
        {
            "backend": one_backend(backend, device_map),
            "split_mode": split_mode,
            "tensor_split": tensor_split,
            "max_vram": max_vram,
            "max_memory": max_memory,
            "rig": rig,
        },
        dynamic_shapes=dynamic_shapes,
        passes=passes,
        callbacks=callbacks,
    )


def undo(pipe: Any) -> None:
    """Makes a compiled pipeline what it was before; one that is not compiled stays as it is."""
    handle = vars(pipe).get(_MARK)
    if handle is not None:
        handle.undo()


class CompiledPipeline:
    """A pipeline whose components are compiled; calling it calls the pipeline.

    ``pipe`` is the pipeline itself, ``components`` has a Component by name, ``rig`` the devices. Used in a ``with``
    statement it undoes itself at the end.
    """

    def __init__(
        self,
        pipe: Any,
        request: Mapping[str, Any],
        *,
        dynamic_shapes: Mapping[str, Mapping[str, Any]] | None = None,
        passes: str | Sequence[Pass] | None = None,
        callbacks: Sequence[Callback] = (),
        readers: Mapping[str, Reader] | None = None,
    ) -> None:
        self.pipe = pipe
        _refuse_twice(pipe)
        modules = modules_of(pipe)
        roles = {name: role_of_component(name) for name in modules}
        self._request = count_held_as_free(Request.parse(**request, components=roles), modules)
        self._passes = passes
        self._callbacks = callbacks
        self._request.switch_on()
        check_names(self._request, roles, dynamic_shapes or {})
        self.components: dict[str, Component] = {}
        for name, devices in share_out(self._request, modules, roles).items():
            self.components[name] = Component(
                name,
                roles[name],
                modules[name],
                devices,
                insists=is_named(self._request, name, roles[name]),
                finish=self._finish,
                whole_on=self._whole_on(devices[0]),
                read=(readers or {}).get(name),
                dynamic_shapes=(dynamic_shapes or {}).get(name),
            )
        self._swap()

    @property
    def rig(self) -> Rig:
        """The devices it was compiled for."""
        return self._request.rig

    @property
    def main(self) -> Device:
        """The device of the pipeline's own tensors: the main device of its largest diffusion component."""
        chosen = [one for one in self.components.values() if one.role == "diffusion"] or list(self.components.values())
        return max(chosen, key=lambda one: one.residence.nbytes).devices[0]

    @property
    def programs(self) -> dict[str, list[CompiledModule]]:
        """What was compiled so far, by component."""
        return {name: one.programs for name, one in self.components.items() if one.programs}

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Calls the pipeline."""
        return self.pipe(*args, **kwargs)

    def prepare(self, *args: Any, **kwargs: Any) -> None:
        """Compiles, and brings weights to their devices, for calls like this one: runs the pipeline for one step."""
        self.pipe(*args, **{"num_inference_steps": 1, **kwargs})

    def refresh(self, *names: str) -> None:
        """Forgets the programs of the named components, or of all; needed after one was changed by hand."""
        for name in names or self.components:
            self.components[name].refresh()

    def undo(self) -> None:
        """Makes the pipeline what it was: its own calls, and every weight back where it was, bit for bit."""
        for component in self.components.values():
            component.restore()
            component.module.__dict__.pop("_hf_hook", None)
        for name in (*_MOVES, "reset_device_map", "hf_device_map", _MARK):
            self.pipe.__dict__.pop(name, None)
        _bring_state(self.pipe)

    def __enter__(self) -> CompiledPipeline:
        return self

    def __exit__(self, *_: object) -> None:
        self.undo()

    def __str__(self) -> str:
        lines = [f"{type(self.pipe).__name__} on {', '.join(map(str, self.rig))}"]
        for name, one in self.components.items():
            where = " & ".join(map(str, one.devices))
            lines.append(f"  {name} ({one.role}): {where}, {len(one.programs)} programs")
        return "\n".join(lines)

    def _swap(self) -> None:
        hook = _ExecutionDevice(self.main.torch if self.rig.present else torch.device("cpu"))
        for component in self.components.values():
            component.swap()
            if self.rig.present:
                component.settle()
            component.module.__dict__["_hf_hook"] = hook
        places = {name: "&".join(map(str, one.devices)) for name, one in self.components.items()}
        own: dict[str, Any] = {name: _refusal(name) for name in _MOVES if hasattr(self.pipe, name)}
        own |= {"hf_device_map": places, "reset_device_map": self.undo, _MARK: self}
        self.pipe.__dict__.update(own)

    def _whole_on(self, main: Device) -> Device:
        """The device of calls that cannot be compiled."""
        return main

    def _finish(self, component: Component, program: Program, module: nn.Module) -> CompiledModule:
        program.devices = self._offer(component)
        program.home = component.residence.homes(module, program)
        shares = self._request.shares_for(component.name, component.role, component.devices)
        given = parse_passes(self._passes) if isinstance(self._passes, str) else self._passes
        mode = self._request.mode_for(component.name, component.role)
        PassManager(given or default_passes(shares, split_mode=mode), self._callbacks).run(program)
        return CompiledModule(program, self.rig, component.residence.source(module, program))

    def _offer(self, component: Component) -> tuple[Device, ...]:
        """The devices of a component, with what the other components leave free of them."""
        taken: Counter[str] = Counter()
        for other in self.components.values():
            if other is component:
                continue
            if len(other.devices) == 1:
                taken[other.devices[0].name] += other.residence.nbytes
            else:
                taken += other.residence.bytes_on()
        return tuple(replace(device, free=max(0, device.free - taken[device.name])) for device in component.devices)


def _bring_state(pipe: Any) -> None:
    """Brings the tensors that a scheduler keeps to the device of the pipeline."""
    for component in pipe.components.values():
        if not isinstance(component, nn.Module) and hasattr(component, "__dict__"):
            held = {name: value for name, value in vars(component).items() if isinstance(value, torch.Tensor)}
            vars(component).update({name: value.to(pipe._execution_device) for name, value in held.items()})


class _ExecutionDevice:
    """Tells diffusers, in accelerate's place, where the pipeline's own tensors belong."""

    def __init__(self, device: torch.device) -> None:
        self.execution_device = device

    def detach_hook(self, module: nn.Module) -> nn.Module:
        """Does nothing; accelerate calls it when it removes hooks."""
        return module


def _refuse_twice(pipe: Any) -> None:
    if _MARK in vars(pipe):
        raise UsageError(f"this {type(pipe).__name__} is compiled already: call undo() on its handle first")
    hooked = [name for name, module in modules_of(pipe).items() if hasattr(module, "_hf_hook")]
    if hooked:
        raise UsageError(
            f"accelerate has hooks on {', '.join(hooked)} of this {type(pipe).__name__}, or another pipeline compiled "
            "them: call pipe.remove_all_hooks(), or undo() there, first"
        )


def _refusal(name: str) -> Callable[..., Any]:
    def refuse(*_: Any, **__: Any) -> Any:
        raise UsageError(
            f"pipe.{name}() cannot move this pipeline: dovetail placed its components (pipe.hf_device_map says where): "
            "name other devices in backend, or call undo() on its handle first"
        )

    return refuse
