"""Carries the arguments of a call to another device, and its results and what it wrote into its arguments back."""

from __future__ import annotations

import dataclasses
import enum
from collections import OrderedDict, defaultdict
from collections.abc import Callable, Mapping, MutableMapping
from copy import copy as copied
from typing import Any

import torch
from torch import nn
from torch.utils import _pytree as pytree

from ...runtime.devices.block_masks import is_block_mask, moved_mask
from ...runtime.devices.transfers import handed

_VALUES = (bool, int, float, complex, str, bytes, type(None), torch.Tensor, torch.dtype, torch.device, torch.Generator)


class Crossing:
    """One call of a module on a device where its arguments may not be.

    Tensors are copied there. Lists and dicts are copied with them, so that the caller's are never half changed: what
    the call put into them is put into the caller's own when the call returns. A tensor that was written in place is
    written back. A block mask of flex attention goes there with the
    tensors that its function reads. Objects of other classes, such as caches, are handed over as they are.

    Args:
        there: where the call runs.
        only: copy tensors of this device alone, and leave others where they are on purpose; all when left out.
        back: where results and what was written belong.
    """

    def __init__(self, there: torch.device, only: torch.device | None, back: torch.device) -> None:
        self._there = there
        self._only = only
        self._back = back
        self._taken: dict[int, tuple[torch.Tensor, torch.Tensor, int]] = {}
        self._copies: dict[int, torch.Tensor] = {}
        self._held: dict[int, tuple[Any, Any]] = {}
        self._given: dict[int, tuple[torch.Tensor, torch.Tensor]] = {}

    def take(self, value: Any) -> Any:
        """A value as the call gets it."""
        if self._only == self._there:
            return value
        if isinstance(value, torch.Tensor):
            return self._take_tensor(value)
        if is_block_mask(value):
            return value if value.kv_num_blocks.device == self._there else moved_mask(value, self._there)
        return self._container(value, self.take)

    def give(self, value: Any) -> Any:
        """A result as the caller gets it."""
        if isinstance(value, torch.Tensor):
            return self._give_tensor(value)
        if id(value) in self._held:
            return self._held[id(value)][1]
        return _mapped(value, self.give)

    def write_back(self) -> None:
        """Brings to the caller what the call wrote into its arguments."""
        for copy, original, version in self._taken.values():
            if not copy.is_inference() and copy._version != version:
                original.copy_(handed(copy, original.device))
        for inner, outer in self._held.values():
            _overwrite(outer, inner, self.give)

    def _take_tensor(self, value: torch.Tensor) -> torch.Tensor:
        if value.device == self._there or (self._only is not None and value.device != self._only):
            return value
        if id(value) not in self._copies:
            with torch.inference_mode(False):
                copy = handed(value, self._there)
            self._copies[id(value)] = copy
            self._taken[id(copy)] = copy, value, copy._version
        return self._copies[id(value)]

    def _give_tensor(self, value: torch.Tensor) -> torch.Tensor:
        if id(value) in self._taken:
            return self._taken[id(value)][1]
        if value.device != self._there or self._there == self._back:
            return value
        if id(value) not in self._given:
            self._given[id(value)] = value, handed(value, self._back)
        return self._given[id(value)][1]

    def _container(self, value: Any, change: Callable[[Any], Any]) -> Any:
        if not _may_be_written(value):
            return _mapped(value, change)
        known = next((inner for inner, outer in self._held.values() if outer is value), None)
        if known is None:
            known = copied(value)
            self._held[id(known)] = known, value
            _overwrite(known, value, change)
        return known


_WRITTEN = (list, dict, OrderedDict, defaultdict)


def _may_be_written(value: Any) -> bool:
    """Whether a value is a list or mapping into which a call may write; records of results are not."""
    if type(value) in _WRITTEN:
        return True
    return isinstance(value, (list, MutableMapping)) and type(value) not in pytree.SUPPORTED_NODES


def _overwrite(target: Any, source: Any, change: Callable[[Any], Any]) -> None:
    if isinstance(target, list):
        target[:] = [change(item) for item in source]
        return
    changed = {key: change(item) for key, item in source.items()}
    target.clear()
    target.update(changed)


def _mapped(value: Any, change: Callable[[Any], Any]) -> Any:
    """A container of values with each changed; the same object where nothing changes, or where it may be written."""
    if isinstance(value, _VALUES) or is_stateful(value):
        return value
    if isinstance(value, tuple):
        items = [change(item) for item in value]
        if all(new is old for new, old in zip(items, value, strict=True)):
            return value
        return type(value)(*items) if hasattr(value, "_fields") else type(value)(items)
    leaves, spec = pytree.tree_flatten(value)
    if spec.is_leaf():
        return value
    changed = [change(leaf) for leaf in leaves]
    if all(new is old for new, old in zip(changed, leaves, strict=True)):
        return value
    return pytree.tree_unflatten(changed, spec)


def is_stateful(value: Any) -> bool:
    """Whether a value is, or holds, an object that a call may write into and a later one read: a cache, say.

    Tensors, numbers, texts, tuples, lists, dicts, enums, functions, modules and block masks are not, and neither is
    what PyTorch takes apart as a container of tensors and has no method ``update``.
    """
    if isinstance(value, (*_VALUES, nn.Module, enum.Enum, type)) or is_block_mask(value):
        return False
    if isinstance(value, (list, tuple)):
        return any(map(is_stateful, value))
    if isinstance(value, Mapping):
        return any(map(is_stateful, value.values()))
    if callable(value) or not (hasattr(value, "__dict__") or hasattr(value, "__slots__")):
        return False
    if hasattr(value, "update"):
        return True
    if dataclasses.is_dataclass(value) and vars(type(value))["__dataclass_params__"].frozen:
        return False
    return type(value) not in pytree.SUPPORTED_NODES
