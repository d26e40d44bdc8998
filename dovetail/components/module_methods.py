"""The methods of a compiled module that save, load, move or convert its weights, and that make tokens."""

from __future__ import annotations

import contextlib
import functools
import weakref
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from ..compiler.errors import UsageError
from ..conventions import libraries
from ..conventions.replacements import put_method
from ..runtime.store.stored_weight import stands_in
from .merging import merged_together

if TYPE_CHECKING:
    from .component import Component

_KINDS = ("cpu", "cuda", "xpu")
"""The methods of a module that move it to a device of a kind."""
_CONVERSIONS = ("half", "bfloat16", "float", "double", "type")
"""Those that convert it."""
_GENERATE, _DECODE = "generate", "decode"


def put_methods(component: Component) -> list[nn.Module]:
    """Has these methods of a component's module ask the component; returns the parts of it that make tokens."""
    module = component.module
    put_method(module, "save_pretrained", functools.partial(_save, component))
    put_method(module, "load_state_dict", functools.partial(_load_state, component))
    for name in libraries.FUSES:
        put_method(module, name, functools.partial(merged_together, (component,)))
    for name in ("to", "enable_group_offload"):
        put_method(module, name, functools.partial(_move, component, name))
    for name in _CONVERSIONS:
        put_method(module, name, functools.partial(_convert, component))
    put_method(module, "_apply", functools.partial(_apply, component))
    for name in _KINDS:
        put_method(module, name, functools.partial(_move_to, component, name))
    if all(hasattr(type(component.module), name) for name in libraries.VAE_METHODS):
        put_method(component.module, _DECODE, functools.partial(_decode, component))
    found = (one for one in module.modules() if callable(getattr(type(one), _GENERATE, None)))
    generating = [one for one in found if _GENERATE not in vars(one)]
    for one in generating:
        put_method(one, _GENERATE, functools.partial(_generate, weakref.ref(component)))
    return generating


def _save(component: Component, original: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    """Saves the module, with the weights that were not needed so far, as if it lay in one place."""
    with component.turn, component.turn, component.view.on_file_terms():
        return original(*args, **kwargs)


def _load_state(component: Component, original: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    """Loads other weights, which go to their devices at the next call; peft fills adapters by this too."""
    return original(*args, **kwargs) if component.takes_adapters else _convert(component, original, *args, **kwargs)


def _convert(component: Component, original: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    """Changes weights while no component runs: what stands for them makes data where it must."""
    with component.turn, component.turn:
        return original(*args, **kwargs)


def _apply(
    component: Component, original: Callable[..., Any], fn: Callable[..., Any], *args: Any, **options: Any
) -> Any:
    """Has a function compute all weights anew, each in the object that it was, as of weights with data.

    PyTorch puts other objects in the place of tensors whose class is not that of the function's result. An optimizer
    that was made over the former would train nothing, and tied weights would part.
    """

    def fitted(one: torch.Tensor) -> torch.Tensor:
        made: torch.Tensor = fn(one)
        if stands_in(one) and not stands_in(made):
            one.data = made
        return made

    return _convert(component, original, fitted, *args, **options)


def _move(component: Component, name: str, original: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    """Refuses to move a placed component; converts it, and lets it be moved to where it says that it is."""
    if name == "enable_group_offload":
        raise UsageError(_immobile(component, name))
    parsed: tuple[Any, ...] = torch._C._nn._parse_to(*args, **kwargs)
    there, dtype, _, layout = parsed
    hook = vars(component.module).get(libraries.HOOK)
    if there is not None and there not in {*_devices_of(component), getattr(hook, "execution_device", None)}:
        raise UsageError(_immobile(component, name))
    dtypes = {tensor.dtype for tensor in component.module.parameters() if tensor.is_floating_point()}
    if layout is None and (dtype is None or dtypes == {dtype}):
        return component.module  # without touching weights that are not read yet
    return _convert(component, original, dtype=dtype, **({} if layout is None else {"memory_format": layout}))


def _move_to(component: Component, name: str, _: Callable[..., Any], device: Any = None) -> Any:
    """What `to` does of a device of a kind: `module.cuda()`, `module.cuda(1)`, `module.cuda("cuda:1")`."""
    asked = torch.device(name, device) if isinstance(device, int) else device and torch.device(device)
    taken = {there for there in _devices_of(component) if there.type == name}
    if not taken or (asked is not None and asked not in taken):
        raise UsageError(_immobile(component, name))
    return component.module


def _immobile(component: Component, name: str) -> str:
    return (
        f"{component.name}.{name}() cannot move this component: dovetail placed its weights on "
        f"{' & '.join(map(str, component.devices))}: name other devices in backend, or call undo() first"
    )


def _decode(component: Component, original: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    """Decodes, and once more with less memory where that runs out."""
    if component.recovery is None:
        return original(*args, **kwargs)
    with component.turn, component.turn:
        return component.recovery.decode(component, original, args, kwargs)


def _generate(owner: Callable[[], Component | None], original: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    """Makes one token after another, each from a longer text or a fuller cache: nothing is compiled for them."""
    component = owner()
    with component.parts.keeping() if component is not None else contextlib.nullcontext():
        return original(*args, **kwargs)


def _devices_of(component: Component) -> set[torch.device]:
    """Where a module says that it is, and its main device, where it comes to be."""
    first = next((parameter.device for parameter in component.module.parameters()), component.whole_on.torch)
    return {first, component.whole_on.torch}
