"""Brings all that a call returns to one device, with what lies in caches and other objects among it."""

from __future__ import annotations

import copy
import functools
from collections.abc import Callable, Iterable, Iterator
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
    Of an object that the module itself keeps for its next call the caller gets a copy, if something in it moves.

    Args:
        home: the device.
        given: what the caller handed in.
        kept: gives the containers that the module reaches, dictionaries of attributes among them.
    """

    def __init__(self, home: torch.device, given: Any, kept: Callable[[], Iterable[Any]]) -> None:
        self._home = home
        self._seen = {id(leaf) for leaf in pytree.tree_leaves(given)}
        self._moved: dict[int, tuple[torch.Tensor, torch.Tensor]] = {}
        self._brought: dict[int, tuple[Any, Any]] = {}
        self._find_kept = kept

    def bring(self, value: Any) -> Any:
        """The result; containers that PyTorch takes apart are made anew, objects get their tensors in place."""
        leaves, spec = pytree.tree_flatten(value)
        there = [self._item(leaf, _DEPTH) for leaf in leaves]
        if all(new is old for new, old in zip(there, leaves, strict=True)):
            return value
        return pytree.tree_unflatten(there, spec)

    def _item(self, item: Any, depth: int) -> Any:
        if isinstance(item, torch.Tensor):
            return self._tensor(item)
        return self.bring(item) if isinstance(item, tuple) else self._object(item, depth)

    def _tensor(self, tensor: torch.Tensor) -> torch.Tensor:
        if not self._is_away(tensor):
            return tensor
        if id(tensor) not in self._moved:
            self._moved[id(tensor)] = tensor, handed(tensor, self._home)
        return self._moved[id(tensor)][1]

    def _is_away(self, tensor: torch.Tensor) -> bool:
        return tensor.device != self._home and id(tensor) not in self._seen

    def _object(self, value: Any, depth: int) -> Any:
        if not depth or id(value) in self._seen or _place_of(value) is None:
            return value
        if id(value) not in self._brought:
            is_kept = id(_place_of(value)) in self._kept and self._has_to_move(value, depth)
            made = copy.copy(value) if is_kept else value
            self._brought[id(value)] = value, made
            self._fill(made, depth)
        return self._brought[id(value)][1]

    def _fill(self, value: Any, depth: int) -> None:
        place = _place_of(value)
        for key, item in list(_items(place)):
            new = self._home if isinstance(item, torch.device) else self._item(item, depth - 1)
            if new is not item:
                place[key] = new

    @functools.cached_property
    def _kept(self) -> set[int]:
        return {id(one) for one in self._find_kept()}

    def _has_to_move(self, value: Any, depth: int) -> bool:
        """Whether an object leads to a tensor that lies elsewhere."""
        if isinstance(value, torch.Tensor):
            return self._is_away(value)
        if isinstance(value, tuple):
            return any(self._has_to_move(one, depth) for one in value)
        place = _place_of(value) if depth and id(value) not in self._seen else None
        return place is not None and any(self._has_to_move(one, depth - 1) for _, one in list(_items(place)))


def _place_of(value: Any) -> Any:
    """Where an object holds others: itself, for a dict or list, or its attributes; None where it is not looked into."""
    if isinstance(value, (*_NOWHERE, torch.Tensor)) or callable(value):
        return None
    return value if isinstance(value, (dict, list)) else getattr(value, "__dict__", None)


def _items(place: Any) -> Iterator[tuple[Any, Any]]:
    yield from place.items() if isinstance(place, dict) else enumerate(place)
