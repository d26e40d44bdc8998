"""What the code of a model may write to beside the model: classes of the user's, and what lists and globals it names.

An attention processor may count its calls in its class, and collect maps in a list of its file. What is found is what
the code of forwards, processors and hooks names, and of what these call; what code reaches in another way (a file,
``globals()``, an object of a library) is not.
"""

from __future__ import annotations

import functools
from collections.abc import Iterable, Iterator
from types import CellType, FunctionType, MethodType, ModuleType
from typing import Any

import torch
from torch import nn

from ..compiler.frontend.outside import CONTAINERS, HOLDERS, Named, contents_of_cell
from ..conventions.replacements import Replacement
from .code import is_own, module_of
from .reach import Reach

_DEPTH = 5
"""So many objects are looked into, one held by another."""
_NOWHERE = (nn.Module, torch.Tensor, type, ModuleType, FunctionType)
_HOOKS = ("_forward_hooks", "_forward_pre_hooks")


def written(module: nn.Module) -> list[Any]:
    """Containers, variables of closures, and names of classes and globals that the code of a module may write to."""
    return written_by(_code(module))


def written_by(code: Iterable[Any]) -> list[Any]:
    """The same of some classes and functions."""
    reach = Reach(dict.fromkeys(code))
    found: list[Any] = [Named(cls) for cls in reach.classes if is_own(module_of(cls))]
    found += [Named(held, names) for held, names, own in reach.globals if own and isinstance(held, dict)]
    seen: set[int] = set()
    values = [value for one in found for value in one.read().values()]
    values += reach.cells
    for function in reach.functions:
        values += [vars(function), *(function.__defaults__ or ()), *(function.__kwdefaults__ or {}).values()]
    for value in values:
        found += _containers(value, _DEPTH, seen)
    return found


def _code(module: nn.Module) -> Iterator[Any]:
    """The classes of parts, and the classes and functions of what lies in their attributes."""
    for child in module.modules():
        yield type(child)
        own = vars(child)
        hooks = [hook for name in _HOOKS for hook in own.get(name, {}).values()]
        yield from _code_of((*own.values(), *hooks), _DEPTH)


def _code_of(values: Iterable[Any], depth: int) -> Iterator[Any]:
    for value in list(values) if depth else ():
        if isinstance(value, Replacement):
            value = getattr(value, "replaced", None)
        if isinstance(value, FunctionType):
            yield value
        elif isinstance(value, MethodType):
            yield from _code_of((value.__func__, value.__self__), depth)
        elif isinstance(value, functools.partial):
            yield from _code_of((value.func, *value.args, *value.keywords.values()), depth - 1)
        elif isinstance(value, dict):
            yield from _code_of(value.values(), depth - 1)
        elif isinstance(value, (list, tuple)):
            yield from _code_of(value, depth - 1)
        elif not isinstance(value, _NOWHERE) and (callable(value) or is_own(module_of(type(value)))):
            yield type(value)
            yield from _code_of(getattr(value, "__dict__", {}).values(), depth - 1)


def _containers(value: Any, depth: int, seen: set[int]) -> Iterator[Any]:
    """The containers that a value is or holds, and the attributes of objects of the user's."""
    if not depth or isinstance(value, _NOWHERE) or id(value) in seen:
        return
    seen.add(id(value))
    held: Iterable[Any] = ()
    if isinstance(value, CONTAINERS):
        yield value
        held = _items(value)
    elif isinstance(value, (tuple, frozenset)):
        held = value
    elif isinstance(getattr(value, "__dict__", None), dict) and _is_of_the_user(value):
        yield vars(value)
        held = vars(value).values()
    for one in list(held):
        yield from _containers(one, depth - 1, seen)


def _items(container: Any) -> Iterable[Any]:
    if isinstance(container, dict):
        return list(dict.values(container))
    return contents_of_cell(container) if isinstance(container, CellType) else list(container)


def _is_of_the_user(value: Any) -> bool:
    return isinstance(value, HOLDERS) or is_own(module_of(type(value)))
