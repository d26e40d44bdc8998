"""What a call of a module may change that none of its attributes holds.

That are variables of the functions that hang on it (its hooks, and functions of its own in place of its class's), what
context variables have collected so far, the globals of the Python modules that its classes come from, and the state of
generators of random numbers that Python or numpy draws by. Libraries collect there what layers return beside what the
model does.
"""

from __future__ import annotations

import functools
import pickle
import random
import sys
import threading
from argparse import Namespace
from array import array
from collections import ChainMap, UserDict, UserList, deque
from collections.abc import Iterator, Mapping
from contextvars import copy_context
from dataclasses import dataclass
from types import (
    BuiltinFunctionType,
    CellType,
    FunctionType,
    MemberDescriptorType,
    MethodType,
    ModuleType,
    SimpleNamespace,
)
from typing import Any
from weakref import WeakKeyDictionary, WeakValueDictionary

import numpy as np
import torch
from numpy import frombuffer, ndarray
from torch import nn
from torch._subclasses.fake_tensor import FakeTensor
from torch.nn.modules import module as every_module
from torch.utils._python_dispatch import _disable_current_modes

CONTAINERS = (dict, list, set, deque, CellType)
HOLDERS = (
    SimpleNamespace, Namespace, UserDict, UserList, ChainMap, WeakKeyDictionary, WeakValueDictionary, threading.local,
)  # fmt: skip
"""What Python has to keep settings in."""
_NOWHERE = (nn.Module, torch.Tensor, str, int, float, complex, bytes, type, BuiltinFunctionType, ModuleType, type(None))
ARRAYS = (ndarray, bytearray, array)
GENERATORS = (random.Random, np.random.RandomState, np.random.Generator, torch.Generator)
_SMALL = 1 << 16
"""Bytes of an array that may count something; what is larger is a table."""
_HOOKS = ("_forward_hooks", "_forward_pre_hooks")
_OF_ALL = ("_global_forward_hooks", "_global_forward_pre_hooks")
_DEPTH = 5
"""So many objects are looked into, one held by another."""
_DEPTH_OF_GLOBALS = 3
_NO_MODELS = ("torch", "builtins")
_WARNINGS = "__warningregistry__"
"""Where Python notes which warnings of a file it has given."""
_PACKAGE = __name__.partition(".")[0] + "."


@dataclass(frozen=True, eq=False)
class Named:
    """Names of a class, of an object, or of the globals of a Python module, that the code of a model may write to.

    Of a class it is, of these or without ``names``, what is neither code nor of Python; of an array its bytes; of a
    generator of random numbers its state.
    """

    held: Any
    names: tuple[str, ...] = ()

    def read(self) -> dict[str, Any]:
        """What they hold now."""
        if isinstance(self.held, dict):
            return {name: self.held[name] for name in self.names if name in self.held}
        if isinstance(self.held, ARRAYS):
            return {f"a {type(self.held).__name__}": _bytes_of(self.held)}
        if isinstance(self.held, GENERATORS):
            return {f"a generator of random numbers ({type(self.held).__name__})": _state_of(self.held)}
        if not isinstance(self.held, type):
            return {name: getattr(self.held, name) for name in self.names if hasattr(self.held, name)}
        own = ((name, one) for name, one in vars(self.held).items() if not self.names or name in self.names)
        return {name: value for name, value in own if not name.startswith("__") and _is_data(value)}

    def write(self, before: Mapping[str, Any]) -> None:
        """Gives them back what they held, where that is another object."""
        now = self.read()
        for name in now.keys() - before.keys():
            self.held.pop(name) if isinstance(self.held, dict) else _kind_of(self.held).__delattr__(self.held, name)
        for name, value in before.items():
            if name in now and now[name] is value:
                continue
            if isinstance(self.held, dict):
                self.held[name] = value
            elif isinstance(self.held, ARRAYS):
                _fill(self.held, value) if now[name] != value else None
            elif isinstance(self.held, GENERATORS):
                _set_state(self.held, value) if now[name] != value else None
            else:
                _kind_of(self.held).__setattr__(self.held, name, value)


def kept_in(value: Any) -> list[Named]:
    """What an object keeps beside a dictionary: attributes with places of their own, bytes of an array, a state."""
    if isinstance(value, ARRAYS):
        return [Named(value)] if _is_small(value) else []
    if isinstance(value, GENERATORS):
        return [Named(value)] if _has_state(value) else []
    if isinstance(value, (*_NOWHERE, *CONTAINERS, FunctionType, MethodType)):
        return []
    names = slots_of(value)
    return [Named(value, names)] if names else []


def slots_of(value: Any) -> tuple[str, ...]:
    """The attributes of an object that have places of their own, beside a dictionary."""
    own = [vars(kind) for kind in type(value).__mro__ if "__slots__" in vars(kind)]
    return tuple(name for one in own for name, place in one.items() if isinstance(place, MemberDescriptorType))


def _kind_of(held: Any) -> Any:
    """What sets attributes, also those of a frozen object."""
    return type if isinstance(held, type) else object


def _is_small(held: Any) -> bool:
    if isinstance(held, ndarray):
        return held.nbytes <= _SMALL and held.flags.writeable and not held.dtype.hasobject
    return len(held) <= _SMALL


def _bytes_of(held: Any) -> bytes:
    return bytes(held) if isinstance(held, bytearray) else bytes(held.tobytes())


def _fill(held: Any, before: bytes) -> None:
    if isinstance(held, ndarray):
        held[...] = frombuffer(before, held.dtype).reshape(held.shape)
    else:
        held[:] = bytearray(before) if isinstance(held, bytearray) else array(held.typecode, before)


def _state_of(generator: Any) -> bytes:
    """Where a generator stands, as bytes: they are compared with ``==``, which arrays among it would not be."""
    if isinstance(generator, torch.Generator):
        with _disable_current_modes():  # a trace would answer with a tensor that has no numbers
            return bytes(generator.get_state().numpy())
    if isinstance(generator, np.random.Generator):
        return pickle.dumps(generator.bit_generator.state)
    return pickle.dumps(generator.getstate() if isinstance(generator, random.Random) else generator.get_state())


def _has_state(generator: Any) -> bool:
    """Whether a generator says where it stands: one that asks the system, or a subclass, may not."""
    try:
        return bool(_state_of(generator))
    except Exception:  # whatever somebody's own raises
        return False


def _set_state(generator: Any, state: bytes) -> None:
    if isinstance(generator, torch.Generator):
        with _disable_current_modes():
            generator.set_state(torch.frombuffer(bytearray(state), dtype=torch.uint8))
        return
    before = pickle.loads(state)
    if isinstance(generator, np.random.Generator):
        generator.bit_generator.state = before
    else:
        generator.setstate(before) if isinstance(generator, random.Random) else generator.set_state(before)


def _is_data(value: Any) -> bool:
    return not callable(value) and not hasattr(type(value), "__get__")


def reached_by_functions(module: nn.Module) -> Iterator[Any]:
    """The containers and variables that functions on a module and its parts, and context variables, lead to."""
    seen: set[int] = set()
    for function in _functions_on(module):
        yield from _reached(function, _DEPTH, seen)
    for value in copy_context().values():
        yield from _reached(value, _DEPTH, seen)


def reached_by_globals(module: nn.Module) -> Iterator[Any]:
    """The globals of the Python modules that the classes of a module come from, and the containers they lead to.

    Of objects those of the same library are looked into.
    """
    seen: set[int] = set()
    names = dict.fromkeys(cls.__module__ for child in module.modules() for cls in type(child).__mro__)
    for name in names:
        library = name.partition(".")[0]
        if library not in _NO_MODELS and name in sys.modules:
            held = vars(sys.modules[name])
            yield held
            for value in [one for key, one in list(held.items()) if key != _WARNINGS]:
                if isinstance(value, (*CONTAINERS, *HOLDERS)) or type(value).__module__.partition(".")[0] == library:
                    yield from _reached(value, _DEPTH_OF_GLOBALS, seen)
                yield from (vars(one) for one in _functions_of(value, name))


def _functions_of(value: Any, module: str) -> list[FunctionType]:
    """The functions of a Python module that one of its globals is or has: they may count their calls in attributes."""
    members = vars(value).values() if isinstance(value, type) and value.__module__ == module else (value,)
    return [one for one in list(members) if isinstance(one, FunctionType) and one.__module__ == module]


def has_fakes(value: Any, depth: int = _DEPTH) -> bool:
    """Whether a value is or holds a tensor of a trace; each object is looked into once, however many lead to it."""
    level, seen = [value], set[int]()
    for _ in range(depth + 1):
        if any(isinstance(one, FakeTensor) for one in level):
            return True
        inner = [one for one in level if not isinstance(one, (*_NOWHERE, FunctionType, MethodType))]
        new = {id(one): one for one in inner if id(one) not in seen}
        seen.update(new)
        level = [held for one in new.values() for held in _held(one)]
    return False


def is_ours(value: Any) -> bool:
    """Whether a value is of this package, as what stands in a compiled module in the place of methods."""
    made = value if isinstance(value, FunctionType) else type(value)
    return str(made.__module__).startswith(_PACKAGE)


def _functions_on(module: nn.Module) -> Iterator[Any]:
    for place in _OF_ALL:
        yield from getattr(every_module, place, {}).values()
    for child in module.modules():
        own = vars(child)
        for place in _HOOKS:
            yield from own.get(place, {}).values()
        yield from (one for one in own.values() if isinstance(one, (FunctionType, MethodType, functools.partial)))


def _reached(value: Any, depth: int, seen: set[int]) -> Iterator[Any]:
    if not depth or isinstance(value, _NOWHERE) or id(value) in seen or is_ours(value):
        return
    seen.add(id(value))
    if isinstance(value, CONTAINERS):
        yield value
    elif isinstance(getattr(value, "__dict__", None), dict) and not isinstance(value, FunctionType):
        yield vars(value)
    yield from kept_in(value)
    for one in _held(value):
        yield from _reached(one, depth - 1, seen)


def _held(value: Any) -> list[Any]:
    """What a value holds: a container its items, a function its variables, an object its attributes."""
    if isinstance(value, dict):
        return list(dict.values(value))  # a class of its own may make them anew
    if isinstance(value, (list, tuple, set, frozenset, deque)):
        return list(value)
    if isinstance(value, CellType):
        return contents_of_cell(value)
    if isinstance(value, MethodType):
        return [value.__self__, value.__func__]
    if isinstance(value, functools.partial):
        return [value.func, *value.args, *value.keywords.values()]
    if isinstance(value, FunctionType):
        return [*(value.__closure__ or ()), *(value.__defaults__ or ()), *(value.__kwdefaults__ or {}).values()]
    return [*getattr(value, "__dict__", {}).values(), *(item for one in kept_in(value) for item in one.read().values())]


def contents_of_cell(cell: CellType) -> list[Any]:
    """The value of a variable of a closure in a list, which is empty before it is set."""
    try:
        return [cell.cell_contents]
    except ValueError:
        return []
