"""What tells one kind of call from another: shapes, dtypes and strides of tensors, and every other argument's value.

What models seldom ask of tensors beside that (``compiler/ir/asked.py``) is told for those that do.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from typing import Any

import torch
from torch.utils import _pytree as pytree

from ...compiler.ir.asked import modes_of_call, one_tensor, unusual
from ...compiler.ir.signature import constant_key

_PLAIN = frozenset((bool, int, str, type(None), torch.dtype, torch.device))


def call_key(args: Sequence[Any], kwargs: Mapping[str, Any], asked: frozenset[str] = frozenset()) -> Hashable:
    """The key of a call: calls of equal keys run the same program, where models ask no more than what is ``asked``."""
    same = one_tensor((*args, *kwargs.values()))
    key = tuple(map(_key, args)), tuple((name, _key(value)) for name, value in kwargs.items())
    if not asked:
        return *key, same
    tensors = (leaf for leaf in pytree.tree_leaves((args, kwargs)) if isinstance(leaf, torch.Tensor))
    return *key, modes_of_call(asked), tuple(unusual(tensor, asked) for tensor in tensors), same


def _key(value: Any) -> Hashable:
    kind = type(value)
    if kind in _PLAIN:
        return kind, value
    if kind is float:
        return constant_key(value)
    if isinstance(value, torch.Tensor):
        return value.shape, value.dtype, value.stride()
    if kind is list or kind is tuple:
        return kind, tuple(map(_key, value))
    if kind is dict:
        return kind, tuple((name, _key(item)) for name, item in value.items())
    leaves, spec = pytree.tree_flatten(value)
    if spec.is_leaf():
        if isinstance(value, Hashable):
            return constant_key(value)
        return kind, id(value)  # no trace takes such an argument: it runs by parts, whatever had the number before
    return kind, str(spec), tuple(map(_key, leaves))
