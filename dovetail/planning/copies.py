"""Copies of what a pipeline holds of its user's, such as counters, caches and controllers: a dry run writes to these.

Modules, tokenizers and other objects of libraries are what they are; so is what was copied already.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator, Mapping
from types import MethodType
from typing import Any

import torch
from torch import nn

from ..components.dry import CannotBePlannedError

_LIBRARIES = frozenset(
    (
        "accelerate",
        "diffusers",
        "dovetail",
        "numpy",
        "peft",
        "PIL",
        "sentencepiece",
        "tokenizers",
        "torch",
        "transformers",
    )
)
_CONTAINERS = (list, tuple, set, frozenset, dict)


def is_of_a_library(value: Any) -> bool:
    """Whether an object is a module, a class, or of a class that a library has, which a call leaves as it is."""
    return isinstance(value, (nn.Module, nn.Parameter, type)) or _home(type(value)) in _LIBRARIES


def is_of_the_user(cls: type[Any]) -> bool:
    """Whether a class of pipelines is none of diffusers' own."""
    return _home(cls) not in _LIBRARIES


def copied(name: str, value: Any, known: Mapping[int, Any], memo: dict[int, Any]) -> Any:
    """A copy of an object of the user's, deep, but for what libraries have; ``known`` are copies by identity.

    ``memo`` has what was copied so far. Raises CannotBePlannedError where it cannot be copied.
    """
    for one in _reached(value, known):
        if id(one) not in memo:
            memo[id(one)] = _as_it_is(one, known)
    try:
        return copy.deepcopy(value, memo)
    except Exception as error:
        raise CannotBePlannedError(
            f"{name}, of {type(value).__qualname__}, cannot be copied ({error}), and a plan must not change it"
        ) from error


def _as_it_is(value: Any, known: Mapping[int, Any]) -> Any:
    """What stands in a copy for an object that is not copied with its attributes."""
    if id(value) in known:
        return known[id(value)]
    if isinstance(value, torch.Generator):
        return value.clone_state()
    if isinstance(value, torch.Tensor) and not isinstance(value, nn.Parameter):
        return value.detach().clone()
    return value


def _reached(value: Any, known: Mapping[int, Any]) -> Iterator[Any]:
    """The objects that are reached from one and are known, tensors, or of libraries."""
    seen: set[int] = set()
    left = [value]
    while left:
        one = left.pop()
        if id(one) in seen:
            continue
        seen.add(id(one))
        if id(one) in known or is_of_a_library(one):
            yield one
        else:
            left += _held(one)


def _held(value: Any) -> list[Any]:
    """What an object holds: its items, its attributes, and what a method is of."""
    found: list[Any] = [] if hasattr(value, "__code__") else list(getattr(value, "__dict__", {}).values())
    if isinstance(value, dict):
        found += [*value.keys(), *value.values()]
    elif isinstance(value, _CONTAINERS):
        found += value
    elif isinstance(value, MethodType):
        found.append(value.__self__)
    return found


def _home(cls: type[Any]) -> str:
    return cls.__module__.partition(".")[0]
