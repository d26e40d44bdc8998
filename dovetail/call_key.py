"""What tells one kind of call from another: shapes, dtypes and strides of tensors, and every other argument's value."""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Mapping, Sequence
from typing import Any

import torch
from torch import nn
from torch.utils import _pytree as pytree

_PLAIN = frozenset((bool, int, float, str, type(None), torch.dtype, torch.device))
_SETTINGS = _PLAIN | {list, tuple}
_OF_ADAPTERS = frozenset(("_hf_peft_config_loaded", "lora_scale", "_safe_fusing"))


def call_key(args: Sequence[Any], kwargs: Mapping[str, Any]) -> Hashable:
    """The key of a call: calls of equal keys run the same program."""
    return tuple(map(_key, args)), tuple((name, _key(value)) for name, value in kwargs.items())


def plain_state(module: nn.Module) -> Hashable:
    """The plain attributes of a module, which may steer what it computes; adapters have a state of their own."""
    return tuple(value for name, value in vars(module).items() if type(value) in _PLAIN and name not in _OF_ADAPTERS)


def processor_state(owners: Iterable[Any]) -> Hashable:
    """Which attention processors there are and what they are set to: they can be changed at any time."""
    return tuple(map(_processor, owners))


def _processor(owner: Any) -> Hashable:
    processor = owner.processor
    held = getattr(processor, "__dict__", None)
    settings = ((name, value) for name, value in held.items() if type(value) in _SETTINGS) if held else ()
    return id(processor), getattr(owner, "fused_projections", None), *((name, _key(value)) for name, value in settings)


def _key(value: Any) -> Hashable:
    kind = type(value)
    if kind in _PLAIN:
        return kind, value
    if isinstance(value, torch.Tensor):
        return value.shape, value.dtype, value.stride()
    if kind is list or kind is tuple:
        return kind, tuple(map(_key, value))
    if kind is dict:
        return kind, tuple((name, _key(item)) for name, item in value.items())
    leaves, spec = pytree.tree_flatten(value)
    if spec.is_leaf():
        return (kind, value) if isinstance(value, Hashable) else (kind, id(value))
    return kind, str(spec), tuple(map(_key, leaves))
