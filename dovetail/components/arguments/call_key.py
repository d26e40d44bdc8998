"""What tells one kind of call from another: shapes, dtypes and strides of tensors, and every other argument's value."""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from typing import Any

import torch
from torch.utils import _pytree as pytree

_PLAIN = frozenset((bool, int, float, str, type(None), torch.dtype, torch.device))


def call_key(args: Sequence[Any], kwargs: Mapping[str, Any]) -> Hashable:
    """The key of a call: calls of equal keys run the same program."""
    return tuple(map(_key, args)), tuple((name, _key(value)) for name, value in kwargs.items())


def _key(value: Any) -> Hashable:
    kind = type(value)
    if kind is float:
        return kind, value.hex()  # two zeros are not one
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
