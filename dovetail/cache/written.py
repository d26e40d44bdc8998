"""What the code of a model may write to beside the model: classes of the user's, and what lists and globals it names.

An attention processor may count its calls in its class, and collect maps in a list of its file. What is found is what
the code of forwards, processors and hooks names, and of what these call, where that code may write to it
(``stores.py``); what code reaches in another way (a file, an object of a library) is not.
"""

from __future__ import annotations

import functools
import random
from collections.abc import Iterable, Iterator, Mapping
from types import BuiltinFunctionType, CellType, FunctionType, MethodType, ModuleType
from typing import Any

import numpy as np
import torch
from torch import nn

from ..compiler.frontend.outside import ARRAYS, CONTAINERS, GENERATORS, HOLDERS, Named, contents_of_cell, kept_in
from ..conventions.replacements import Replacement
from .code import imports_in, is_own, module_of, names_in
from .reach import Reach
from .stores import ANY, Stores

_DEPTH = 5
"""So many objects are looked into, one held by another."""
_NOWHERE = (nn.Module, torch.Tensor, type, ModuleType, FunctionType)
_METHODS = (MethodType, BuiltinFunctionType)
_LEADING = (tuple, frozenset, functools.partial, *_METHODS)
"""What holds others, and cannot be changed."""
_HOOKS = ("_forward_hooks", "_forward_pre_hooks")
_OF_PYTHON, _OF_NUMPY = random._inst, np.random.mtrand._rand


def written(module: nn.Module) -> list[Any]:
    """Containers, variables of closures, and names of classes and globals that the code of a module may write to."""
    return written_by(_code(module))


def written_by(code: Iterable[Any]) -> list[Any]:
    """The same of some classes and functions."""
    reach = Reach(dict.fromkeys(code))
    stores = Stores(reach.functions)
    seen: set[tuple[int, tuple[str, ...]]] = set()
    found: list[Any] = []
    for cls in reach.classes:
        if not is_own(module_of(cls)):
            found += _stored_to(cls, stores)
        else:
            found += [Named(cls)] if stores.is_open else _named(cls, stores.names)
            found += _below({name: one for name, one in vars(cls).items() if not name.startswith("__")}, stores, seen)
    for held, names, own in reach.globals:
        if own and isinstance(held, dict):
            found += _named(held, names if stores.is_open else stores.names.intersection(names))
            found += _below(Named(held, names).read(), stores, seen)
        else:
            found += [one for cls in _classes_in(held, names) for one in _stored_to(cls, stores)]
    for function in reach.functions:
        found += _named(function.__globals__, stores.names.intersection(names_in(function.__code__)))
        found += [vars(function)] if stores.is_open else _named(vars(function), stores.names)
        found += _drawn_by(function)
        found += _below({**vars(function), **_defaults(function)}, stores, seen)
        found += _below(dict(zip(function.__code__.co_freevars, function.__closure__ or (), strict=True)), stores, seen)
    return list({id(one): one for one in found}.values())


def _drawn_by(function: FunctionType) -> list[Any]:
    """The generators of Python and numpy by which all code draws (`random.random()`), where a function names them."""
    names = names_in(function.__code__)
    globals_ = (function.__globals__.get(name) for name in names)
    modules = {one.__name__ for one in globals_ if isinstance(one, ModuleType)}
    modules.update(imports_in(function.__code__, function.__globals__.get("__package__") or ""))
    found = [Named(_OF_PYTHON)] if "random" in modules else []
    is_numpys = "numpy.random" in modules or ("numpy" in modules and "random" in names)
    return [*found, Named(_OF_NUMPY)] if is_numpys else found


def _named(held: Any, names: Iterable[str]) -> list[Any]:
    return [Named(held, chosen)] if (chosen := tuple(sorted(names))) else []


def _stored_to(cls: type, stores: Stores) -> list[Any]:
    """What code may store to of a class that is no code of its own: a patch of a library may count in its class."""
    return [Named(cls)] if stores.is_open else _named(cls, stores.names)


def _classes_in(held: Mapping[str, Any], names: Iterable[str]) -> list[type]:
    return [one for name in names if isinstance(one := held.get(name), type)]


def _defaults(function: FunctionType) -> dict[str, Any]:
    """The default values of a function by the names of its arguments."""
    code, defaults = function.__code__, function.__defaults__ or ()
    names = code.co_varnames[: code.co_argcount][code.co_argcount - len(defaults) :]
    return {**dict(zip(names, defaults, strict=False)), **(function.__kwdefaults__ or {})}


def _below(held: Mapping[str, Any], stores: Stores, seen: set[tuple[int, tuple[str, ...]]]) -> Iterator[Any]:
    """What values that go by these names are or hold."""
    for name, value in list(held.items()):  # another thread may put something in
        yield from _containers(value, _DEPTH, (name,), stores, seen)


def _code(module: nn.Module) -> Iterator[Any]:
    """The classes of parts, and the classes and functions of what lies in their attributes."""
    for child in module.modules():
        yield type(child)
        own = vars(child)
        hooks = [hook for name in _HOOKS for hook in own.get(name, {}).values()]
        yield from code_of((*own.values(), *hooks))


def attributes_in(value: Any) -> dict[str, Any]:
    """The attributes of an object, none of one that does not say: objects of somebody's own may raise anything."""
    try:
        held = value.__dict__
    except Exception:
        return {}
    return held if type(held) is dict else {}


def code_of(values: Iterable[Any], depth: int = _DEPTH) -> Iterator[Any]:
    """The classes and functions of what these values are, hold and call."""
    for value in list(values) if depth else ():
        if isinstance(value, Replacement):
            value = getattr(value, "replaced", None)
        if isinstance(value, FunctionType):
            yield value
        elif isinstance(value, MethodType):
            yield from code_of((value.__func__, value.__self__), depth)
        elif isinstance(value, functools.partial):
            yield from code_of((value.func, *value.args, *value.keywords.values()), depth - 1)
        elif isinstance(value, dict):
            yield from code_of(list(value.values()), depth - 1)
        elif isinstance(value, (list, tuple)):
            yield from code_of(value, depth - 1)
        elif not isinstance(value, _NOWHERE) and (callable(value) or is_own(module_of(type(value)))):
            yield type(value)
            yield from code_of(list(attributes_in(value).values()), depth - 1)


def _containers(
    value: Any, depth: int, names: tuple[str, ...], stores: Stores, seen: set[tuple[int, tuple[str, ...]]]
) -> Iterator[Any]:
    """The containers that a value is or holds, and the attributes of objects of the user's, which are stored to.

    ``names`` are those by which code comes there. Tensors that it may write in place are in lists of their own.
    """
    if isinstance(value, torch.Tensor) and stores.change(names):
        yield [value]
    if isinstance(value, type) and not is_own(module_of(value)):
        yield from _stored_to(value, stores)
    if not depth or isinstance(value, _NOWHERE) or (id(value), names) in seen:
        return
    seen.add((id(value), names))
    held: list[tuple[str, Any]] = []
    if isinstance(value, CONTAINERS):
        if names[-1] in stores.names if isinstance(value, CellType) else _is_changed(value, names, stores):
            yield value
        held = [("", one) for one in _items(value)]
    elif isinstance(value, _LEADING):
        held = [("", one) for one in _led_to(value)]
    if isinstance(getattr(value, "__dict__", None), dict) and _is_of_the_user(value):
        is_open = stores.is_open or _is_of_a_library(type(value))
        yield from [vars(value)] if is_open else _named(vars(value), stores.names)
        held += list(vars(value).items())
        names = names if not is_open else ANY
    if isinstance(value, GENERATORS):
        yield from kept_in(value)  # whatever is called on one changes it
        return
    for kept in kept_in(value) if isinstance(value, ARRAYS) or _is_of_the_user(value) else ():
        if isinstance(value, ARRAYS):
            yield from [kept] if stores.change(names) else []
        else:
            yield from [kept] if stores.is_open else _named(value, stores.names.intersection(kept.names))
            held += kept.read().items()
    for name, one in held:
        yield from _containers(one, depth - 1, (*names, name) if name else names, stores, seen)


def _is_changed(container: Any, names: tuple[str, ...], stores: Stores) -> bool:
    """Whether code may change a container that goes by these names: methods of a class of the user's call it self."""
    return stores.change(names) or is_own(module_of(type(container)))


def _led_to(value: Any) -> Iterable[Any]:
    """What a tuple holds, and what is given to a function that has some of its arguments."""
    if isinstance(value, functools.partial):
        return value.func, *value.args, *value.keywords.values()
    return (value.__self__,) if isinstance(value, _METHODS) else value


def _items(container: Any) -> Iterable[Any]:
    if isinstance(container, dict):
        return list(dict.values(container))
    return contents_of_cell(container) if isinstance(container, CellType) else list(container)


def _is_of_a_library(cls: type) -> bool:
    """Whether code of a library, which is not looked into, may store to objects of a class of the user's."""
    return not issubclass(cls, HOLDERS) and not all(one is object or is_own(module_of(one)) for one in cls.__mro__)


def _is_of_the_user(value: Any) -> bool:
    return isinstance(value, HOLDERS) or is_own(module_of(type(value)))
