"""What the code of a model reaches beside the model: classes of processors, functions of libraries, globals.

``AttnProcessor2_0.__call__ = mine``, ``F.scaled_dot_product_attention = mine`` and ``COUNT[0] = 1`` change what the
next call computes. Which classes and which names of which namespaces count is what the cache's key goes by too
(`cache.reach`). Their values are compared by identity before each call; in lists and tables of somebody's own, and in
tables of functions, each item. What libraries collect in tables of their own is no setting, and is not looked into.
Of somebody's own context variables and variables of a thread it is the numbers, texts and flags that they hold now,
and the types of all else: what is collected in them is another at each call.
"""

from __future__ import annotations

import contextlib
import functools
import itertools
import os
import sys
import threading
import weakref
from collections import deque
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping
from contextvars import ContextVar
from operator import attrgetter, itemgetter
from types import (
    BuiltinFunctionType,
    CellType,
    FunctionType,
    MappingProxyType,
    MethodType,
    ModuleType,
)
from typing import Any, Protocol, TypeVar

import torch
from numpy import ndarray
from torch import nn

from ..cache.code import is_own, module_of
from ..cache.reach import Reach
from ..compiler.frontend.outside import HOLDERS
from .identity import serial

Describe = Callable[[Any, int], Hashable]


class Walk(Protocol):
    """What describes values, each in one way for all that is described with it."""

    def value(self, value: Any, depth: int) -> Hashable:
        """What a value says."""


WalkT = TypeVar("WalkT", bound=Walk)

_CODE = (type, FunctionType, BuiltinFunctionType, MethodType, ModuleType)
_TOLD = (bool, int, float, complex, str, bytes, type(None), torch.dtype, torch.device, torch.Tensor, ndarray, *_CODE)
PARTIALS = (functools.partial, functools.partialmethod)
_CONTAINERS = (list, tuple, set, frozenset, dict, deque, MappingProxyType, bytearray)
_SAYS = attrgetter("__code__", "__defaults__", "__kwdefaults__")
_PLAIN = (bool, int, float, complex, str, bytes, type(None), torch.dtype, torch.device)
DEPTH = 4
"""So many objects are looked into, one held by another."""
_OF_MODELS = frozenset(
    ("", "nn", "fft", "linalg", "special", "functional", "distributions", "sparse", "nested", "masked", "signal")
)
"""Where PyTorch has functions that models call; what else it keeps changes as it works."""


class Reached:
    """The classes and globals that the code of some classes and functions reaches.

    ``described`` says what they are set to: equal where they are.
    """

    def __init__(self, roots: Iterable[Any]) -> None:
        self._roots = list(roots)
        reach = Reach(self._roots)
        known = {base for root in self._roots if isinstance(root, type) and issubclass(root, nn.Module)
                 for base in root.__mro__}  # fmt: skip
        self._classes = [
            one
            for one in reach.classes
            if one not in known and not issubclass(one, nn.Module) and _counts(module_of(one))
        ]
        self._globals = [one for one in reach.globals if _counts(str(one[0].get("__name__")))]
        self._cells, self._functions, self._variables = reach.cells, reach.functions, list(reach.variables)
        held = [[held[name] for name in names if name in held] for held, names, own in self._globals if own]
        self._ambient = list(filter(_is_ambient, itertools.chain(*held, _contents(self._cells))))
        self._members = [vars(one) for one in self._classes]
        self._getters = [(held, itemgetter(*names, names[0])) for held, names, _ in self._globals]
        self.described: Hashable = ()

    def values(self) -> Iterator[Any]:
        """What is compared by identity. Raises KeyError or ValueError where one is gone."""
        chain = itertools.chain.from_iterable
        members = chain([held.values() for held in self._members])
        named = chain([getter(held) for held, getter in self._getters])
        ambient = (value for one in self._ambient for _, value in _held_now(one))
        said = chain([(*_SAYS(one), *vars(one).values()) for one in self._functions])
        return itertools.chain(
            members, named, [cell.cell_contents for cell in self._cells], said, self._environment(), ambient
        )

    def _environment(self) -> list[str]:
        """The environment variables that somebody's own code asks, each text the same object while it is equal."""
        return [sys.intern(os.environ.get(name, "")) for name in self._variables]

    def renewed(self, roots: Iterable[Any], walk: Callable[[], WalkT]) -> tuple[Reached, WalkT]:
        """The same for roots and values as they are now, and the walk that has described them."""
        wanted, one = list(roots), walk()
        try:
            if self._roots == wanted and self._describe(one.value) == self.described:
                return self, one
        except (KeyError, ValueError):
            pass
        found, one = Reached(wanted), walk()
        found.described = found._describe(one.value)
        return found, one

    def _describe(self, describe: Describe) -> Hashable:
        members = tuple(_of_class(one, describe) for one in self._classes)
        held = tuple(
            tuple((name, _of_global(held[name], own, describe)) for name in names) for held, names, own in self._globals
        )
        rest = [cell.cell_contents for cell in self._cells]
        rest += [item for one in self._functions for item in _said(one)]
        ambient = tuple((name, describe(value, 0)) for one in self._ambient for name, value in _held_now(one))
        told = tuple(_of_global(one, True, describe) for one in rest)
        return members, held, told, tuple(self._environment()), ambient


def _of_class(cls: type, describe: Describe) -> Hashable:
    own = is_own(module_of(cls))
    shown = ((name, one) for name, one in vars(cls).items() if not name.startswith("__") or callable(one))
    return serial(cls), tuple((name, _of_global(one, own, describe)) for name, one in shown)


def _said(function: FunctionType) -> list[Any]:
    """What a function is: its code, its defaults, and what somebody has put on it."""
    defaults, named = function.__defaults__ or (), function.__kwdefaults__ or {}
    return [function.__code__, *defaults, *named.items(), *vars(function).items()]


def _of_global(value: Any, own: bool, describe: Describe) -> Hashable:
    if own and _is_bound(value):
        return describe(value, DEPTH)
    if isinstance(value, _TOLD):
        return describe(value, 0)
    if own and isinstance(value, weakref.ref):
        return describe(value(), DEPTH)
    # other objects of Python's own, such as loggers, are told by identity
    if own and isinstance(value, HOLDERS) and not _is_ambient(value):
        return describe(value, DEPTH)
    if isinstance(value, _CONTAINERS):
        return describe(value, DEPTH) if own or _is_of_functions(value) else serial(value)
    return describe(value, DEPTH) if is_own(module_of(type(value))) else serial(value)


def _is_bound(value: Any) -> bool:
    """Whether a value is a function that has arguments already, or is of a container or of an object of the user's."""
    if not isinstance(value, (MethodType, BuiltinFunctionType)):
        return isinstance(value, PARTIALS)
    return isinstance(value.__self__, _CONTAINERS) or is_own(module_of(type(value.__self__)))


def _counts(module: str) -> bool:
    """Whether somebody patches what is in a module: of PyTorch's own functions, those that models call."""
    package, _, rest = module.partition(".")
    return package != "torch" or rest.partition(".")[0] in _OF_MODELS


def _is_ambient(value: Any) -> bool:
    return isinstance(value, (ContextVar, threading.local))


def _contents(cells: Iterable[CellType]) -> Iterator[Any]:
    for cell in cells:
        with contextlib.suppress(ValueError):  # it is empty
            yield cell.cell_contents


def _held_now(ambient: ContextVar[Any] | threading.local) -> Iterator[tuple[Hashable, Any]]:
    """What a context variable, or those of a thread, hold in this one: plain values, and the types of others."""
    there = {"": ambient.get(None)} if isinstance(ambient, ContextVar) else vars(ambient)
    for name, value in list(there.items()):
        yield name, value if isinstance(value, _PLAIN) else type(value)
        within = value if isinstance(value, dict) else getattr(value, "__dict__", {})
        for key, item in list(within.items()):
            if isinstance(key, str):
                yield (name, key), item if isinstance(item, _PLAIN) else type(item)


def _is_of_functions(value: Any) -> bool:
    return isinstance(value, Mapping) and bool(value) and all(isinstance(one, _CODE) for one in value.values())
