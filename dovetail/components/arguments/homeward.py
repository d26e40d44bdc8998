"""Brings all that a call returns to one device, with what lies in caches and other objects among it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch import nn
from torch.utils import _pytree as pytree

from ...runtime.devices.transfers import handed

_NOWHERE = (str, bytes, int, float, complex, type(None), torch.dtype, torch.Generator, nn.Module, type)
_DEPTH = 6
"""So many objects are looked into, one held by another."""


class Homeward:
    """One result on its way to a device; the same tensor in two places stays one.

    What the caller handed in stays where the call has it: a loop that hands on a cache from call to call needs it so.
    """

    def __init__(self, home: torch.device, given: Any) -> None:
        self._home = home
        self._seen = {id(leaf) for leaf in pytree.tree_leaves(given)}
        self._moved: dict[int, tuple[torch.Tensor, torch.Tensor]] = {}

    def bring(self, value: Any) -> Any:
        """The result; containers that PyTorch takes apart are made anew, objects get their tensors in place."""
        leaves, spec = pytree.tree_flatten(value)
        there = [self._leaf(leaf) for leaf in leaves]
        if all(new is old for new, old in zip(there, leaves, strict=True)):
            return value
        return pytree.tree_unflatten(there, spec)

    def _leaf(self, leaf: Any) -> Any:
        if isinstance(leaf, torch.Tensor):
            return self._tensor(leaf)
        self._inside(leaf, _DEPTH)
        return leaf

    def _tensor(self, tensor: torch.Tensor) -> torch.Tensor:
        if tensor.device == self._home or id(tensor) in self._seen:
            return tensor
        if id(tensor) not in self._moved:
            self._moved[id(tensor)] = tensor, handed(tensor, self._home)
        return self._moved[id(tensor)][1]

    def _inside(self, value: Any, depth: int) -> None:
        if not depth or isinstance(value, (*_NOWHERE, torch.Tensor)) or id(value) in self._seen or callable(value):
            return
        self._seen.add(id(value))
        place = value if isinstance(value, (dict, list)) else getattr(value, "__dict__", None)
        if place is None:
            return
        for key, item in list(_items(place)):
            if isinstance(item, torch.Tensor):
                place[key] = self._tensor(item)
            elif isinstance(item, torch.device):
                place[key] = self._home
            elif isinstance(item, tuple):
                place[key] = self.bring(item)
            else:
                self._inside(item, depth - 1)


def _items(place: Any) -> Iterator[tuple[Any, Any]]:
    yield from place.items() if isinstance(place, dict) else enumerate(place)
