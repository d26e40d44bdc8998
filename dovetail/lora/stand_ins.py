"""Lets diffusers and peft load adapters into components whose weights are elsewhere: on several devices, or in files.

peft looks at a module's weight for the device and dtype of an adapter, and diffusers moves a whole text encoder to the
device of its first weight. While an adapter is loaded, each weight therefore gives way to a stand-in of its shape and
dtype in host memory, which takes up none; so adapters come to lie in host memory, from which programs take them.
"""

from __future__ import annotations

import contextlib
import copy
import functools
from collections import OrderedDict
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Protocol, cast

import torch
from torch import nn

from ..compiler.errors import UsageError
from ..compiler.frontend.trace_lock import alone
from ..conventions import libraries
from ..conventions.replacements import put_method
from ..runtime.devices.fork import ForkSafeLock
from .adapters import Adapters

_NEW = "add_adapter"
_OF_MODULES = ("load_lora_adapter", "load_adapter", _NEW, libraries.LOAD_IP_ADAPTER)


class Merging(Protocol):
    """Merges adapters into the weights of a component."""

    def take_out_due(self) -> None:
        """Takes out of the weights what peft took out while stand-ins were in their places."""

    def forget_due(self) -> None:
        """Leaves it in."""


class Adaptable(Protocol):
    """A component that adapters are loaded into."""

    adapters: Adapters
    takes_adapters: bool

    @property
    def merges(self) -> Merging:
        """What is merged into its weights."""

    @property
    def module(self) -> nn.Module:
        """The module of the component."""

    @property
    def turn(self) -> ForkSafeLock:
        """Held while a component of the pipeline runs or is changed."""


def guard_module(component: Adaptable) -> None:
    """Has the methods of a component's module that load adapters of any kind work on stand-ins for its weights."""
    for name in _OF_MODULES:
        put_method(component.module, name, functools.partial(on_stand_ins, (component,)))


def on_stand_ins(components: Sequence[Adaptable], original: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    """Loads an adapter while stand-ins take the weights' places; one that is refused changes nothing."""
    if not components:
        return original(*args, **kwargs)
    if getattr(original, "__name__", "") == _NEW:
        _refuse_what_reads_weights(components[0].module, (*args, *kwargs.values()))
    turn = components[0]  # which is that of all
    with turn.turn, turn.turn, alone():  # nothing is compiled meanwhile, and nothing runs
        return _load(components, original, args, kwargs)


def _refuse_what_reads_weights(module: nn.Module, configs: Sequence[Any]) -> None:
    if any(map(libraries.is_computed_from_weights, configs)):
        raise UsageError(
            f"this adapter is computed from the weights of {type(module).__name__}, which are elsewhere now (use_dora, "
            "or init_lora_weights=…): add it before the pipeline is compiled, or load it from a file"
        )


def _load(
    components: Sequence[Adaptable], original: Callable[..., Any], args: Sequence[Any], kwargs: Mapping[str, Any]
) -> Any:
    restores = [_snapshot(component.module) for component in components]
    replaces = getattr(original, "__name__", "") == libraries.LOAD_IP_ADAPTER
    try:
        with contextlib.ExitStack() as stack:
            for component in components:
                if not replaces:
                    stack.enter_context(_without_replacements(component.module))
                stack.enter_context(_stand_ins(component.module))
                stack.enter_context(_taking_adapters(component))
            result = original(*args, **kwargs)
        for component in components:
            if not component.takes_adapters:
                component.merges.take_out_due()
    except BaseException:
        for component, restore in zip(components, restores, strict=True):
            component.merges.forget_due()
            restore()
        raise
    for component in components:
        component.adapters.wrappers(component.module)
        component.adapters.forget()
    return result


def _snapshot(module: nn.Module) -> Callable[[], None]:
    """Notes the attributes of a module, of all its parts and of its configuration; what it returns sets them back.

    Containers are noted with their content, one level deep, and set back in place, so that whoever holds one of them
    sees the old content too. Tensors are not copied.
    """
    owners = [*module.modules(), *filter(None, [getattr(module, "config", None)])]
    noted = [(vars(owner), dict(vars(owner))) for owner in owners]
    held = [value for _, own in noted for value in own.values() if type(value) in (dict, OrderedDict, list, set)]
    contents = [(value, copy.copy(value)) for value in held]

    def restore() -> None:
        for attributes, before in noted:
            attributes.clear()
            attributes.update(before)
        for value, before in contents:
            value.clear()
            value.extend(before) if isinstance(value, list) else value.update(before)

    return restore


@contextlib.contextmanager
def _stand_ins(module: nn.Module) -> Iterator[None]:
    """Puts stand-ins in place of all weights but those of adapters that are there already.

    Each weight requires a gradient afterwards if its stand-in does.
    """
    memo: dict[int, torch.Tensor] = {}
    replaced: list[tuple[dict[str, Any], str, torch.Tensor]] = []
    try:
        for child in set(module.modules()) - set(_own_modules(module)):
            for held in cast(list[dict[str, Any]], [child._parameters, child._buffers]):
                for name, tensor in list(held.items()):
                    if tensor is not None:
                        replaced.append((held, name, tensor))
                        held[name] = memo.setdefault(id(tensor), _stand_in(tensor))
        yield
    finally:
        for held, name, tensor in replaced:
            if tensor.is_leaf:
                tensor.requires_grad_(memo[id(tensor)].requires_grad)
            held[name] = tensor


@contextlib.contextmanager
def _taking_adapters(component: Adaptable) -> Iterator[None]:
    before, component.takes_adapters = component.takes_adapters, True  # a pipeline's load calls that of its modules
    try:
        yield
    finally:
        component.takes_adapters = before


def _own_modules(module: nn.Module) -> Iterator[nn.Module]:
    """The modules that peft has added to a module."""
    for wrapper in module.modules():
        if hasattr(wrapper, "base_layer"):
            for name, child in wrapper.named_children():
                yield from child.modules() if name != "base_layer" else ()


def _stand_in(tensor: torch.Tensor) -> torch.Tensor:
    data = torch.zeros((), dtype=tensor.dtype).expand(tensor.shape)
    if isinstance(tensor, nn.Parameter):
        data = nn.Parameter(data, requires_grad=tensor.requires_grad)
    return libraries.mark_initialized(data)


@contextlib.contextmanager
def _without_replacements(module: nn.Module) -> Iterator[None]:
    """Refuses what puts other modules in place of those there are, as a LoRA for a wider input does."""
    before = [(parent, key, child) for parent in module.modules() for key, child in parent._modules.items()]
    yield
    changed = [key for parent, key, child in before if _unwrapped(parent._modules.get(key)) is not _unwrapped(child)]
    if changed:
        raise UsageError(
            f"this LoRA changes the shape of {', '.join(changed)} in {type(module).__name__}: "
            "load it before the pipeline is compiled"
        )


def _unwrapped(module: Any) -> Any:
    return getattr(module, "base_layer", module)
