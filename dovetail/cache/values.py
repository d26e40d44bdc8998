"""Values by content: what an attribute, a default or an argument says, whatever object of which process says it."""

from __future__ import annotations

import functools
import hashlib
import re
import types
from collections import deque
from collections.abc import Mapping
from enum import Enum
from pathlib import PurePath
from types import BuiltinFunctionType, FunctionType, MemberDescriptorType, MethodType, ModuleType
from typing import Any

import torch
from numpy import dtype as numpy_dtype
from numpy import generic, ndarray
from torch import nn
from torch._ops import OpOverload, OpOverloadPacket
from torch.export import Dim

from ..compiler.frontend.fakes import attributes_of, has_numbers
from ..compiler.frontend.refusals import foreign_library
from ..conventions import libraries
from .code import is_of_python, module_of
from .held import held_by

_PLAIN = (bool, int, str, bytes, complex, type(None), type(Ellipsis), type(NotImplemented), range)
_OF_PYTHON = (int, float, complex, str, bytes)
_TORCH_PLAIN = (torch.dtype, torch.device, torch.layout, torch.memory_format, torch.Size)
_SEQUENCES = (list, tuple, deque)
_SETS = (set, frozenset)
_SLOTS = (MemberDescriptorType, types.GetSetDescriptorType, types.WrapperDescriptorType, types.MethodDescriptorType)
_BUILTIN = (BuiltinFunctionType, types.MethodWrapperType, types.ClassMethodDescriptorType, *_SLOTS)
DEEPEST = 60
"""So many values are followed, one held by another."""


class HasNoContent(Exception):
    """Something that a trace depends on cannot be told by content; the message says what."""


class Values:
    """Collects values into one digest. How modules, classes and functions are told, a subclass says."""

    def __init__(self) -> None:
        self._digest = hashlib.blake2b(digest_size=20)
        self._met: dict[int, tuple[int, Any]] = {}
        self._names: set[str] = {"forward"}
        self._texts: set[str] = set()  # in the state: what a forward may look up by
        self._homes: set[str] = set()  # the packages that the classes of the model come from
        self._depth = 0
        self._is_state = True
        self._is_owned = False  # whether somebody's own code holds what is told now

    def say(self, *words: object) -> None:
        """Adds plain words."""
        self._digest.update(repr(words).encode(errors="surrogatepass"))

    def _call(self, value: Any) -> None:
        if isinstance(value, torch.Tensor):
            if foreign_library(value):
                raise HasNoContent(f"an argument that is a {type(value).__qualname__}")
            self.say("tensor", value.dtype, tuple(value.shape), value.stride())
        elif type(value) in (list, tuple):
            self.say(type(value).__name__, len(value))
            for item in value:
                self._call(item)
        elif type(value) is dict:
            self.say("dict", len(value))
            for key, item in value.items():
                self._value(key)
                self._call(item)
        else:
            self._value(value)

    def _value(self, value: Any) -> None:
        """Adds any value; what was met before is told by its number."""
        if type(value) is float:
            self.say("float", value.hex())
        elif isinstance(value, _PLAIN) and type(value) in _PLAIN:
            self.say(type(value).__name__, value)
            if self._is_state and type(value) is str:
                self._texts.add(value)
        elif isinstance(value, _TORCH_PLAIN):
            self.say("torch", str(value))
        elif id(value) in self._met:
            self.say("met", self._met[id(value)][0])
        elif self._depth == DEEPEST:
            raise HasNoContent(f"objects that hold one another more than {DEEPEST} deep")
        else:
            self._met[id(value)] = len(self._met), value
            self._depth += 1
            self._object(value)
            self._depth -= 1

    def _object(self, value: Any) -> None:
        if isinstance(value, nn.Module) and not isinstance(value, torch.jit.ScriptModule):
            self._note_home(type(value))
            self._module(value)
        elif isinstance(value, torch.Tensor):
            self._tensor(value)
        elif isinstance(value, (ndarray, generic)):
            self._array(value)
        elif isinstance(value, type):
            self._class(value)
        elif isinstance(value, FunctionType):
            self._function(value)
        elif isinstance(value, MethodType):
            self.say("method")
            self._value(value.__func__)
            self._value(value.__self__)
        elif isinstance(value, _BUILTIN):
            self.say("builtin", getattr(value, "__module__", None), value.__qualname__)
            if isinstance(owner := getattr(value, "__self__", None), (dict, *_SEQUENCES, *_SETS)):
                self._value(owner)
        elif isinstance(value, ModuleType):
            self.say("module", value.__name__)
        elif isinstance(value, Enum):
            self.say("enum", value.name)
            self._value(type(value))
            self._value(value.value)
        else:
            self._container(value)

    def _container(self, value: Any) -> None:
        if isinstance(value, dict):
            items = list(dict.items(value))  # what lies in it: those of libraries import what they are asked for
            self.say("dict", len(items))
            self._value(type(value)) if type(value) is not dict else None
            for key, item in items:  # a copy, for another thread may put something in meanwhile
                self._value(key)
                self._value(item if key != libraries.LEFT_AS_DEFAULT else None)
            self._attributes(value) if type(value) is not dict else None
        elif isinstance(value, _SEQUENCES):
            self.say("sequence", len(value))
            self._value(type(value))
            for item in value:
                self._value(item)
            self._attributes(value) if type(value) not in _SEQUENCES else None
        elif isinstance(value, _SETS):
            self.say("set", sorted(self._apart(item) for item in value))
            for item in sorted(filter(_is_described, value), key=self._apart):
                self._value(item)
            self._attributes(value) if type(value) not in _SETS else None
        else:
            self._instance(value)

    def _instance(self, value: Any) -> None:
        if isinstance(value, functools.partial):
            self.say("partial")
            for part in (value.func, value.args, value.keywords):
                self._value(part)
        elif isinstance(value, functools._lru_cache_wrapper):
            self.say("cached")
            self._value(value.__wrapped__)
        elif isinstance(value, (OpOverload, OpOverloadPacket, numpy_dtype, PurePath)):
            self.say(type(value).__name__, str(value))
        elif isinstance(value, re.Pattern):
            self.say("pattern", value.pattern, value.flags)
        elif isinstance(value, slice):
            self.say("slice", value.start, value.stop, value.step)
        else:
            self._of_a_class(value)

    def _of_a_class(self, value: Any) -> None:
        """An object of a Python class: by its attributes. One that a function names may be told by its class alone."""
        kind = type(value)
        self.say("object")
        self._note_home(kind)
        self._value(kind)
        told = (Dim.__module__, "torch.nn.")
        home = module_of(kind)
        is_of_torch = home.partition(".")[0] == "torch" and not home.startswith(told)
        if is_of_python(home) or is_of_torch:
            if self._is_state:
                raise HasNoContent(f"a {home}.{kind.__qualname__}")
            if self._is_owned and not is_of_torch:
                self._value(held_by(value))
            return
        if isinstance(value, _OF_PYTHON):
            self.say(next(base.__repr__(value) for base in _OF_PYTHON if isinstance(value, base)))
        elif (
            self._is_state and not hasattr(value, "__dict__") and not any("__slots__" in vars(c) for c in kind.__mro__)
        ):
            raise HasNoContent(f"a {home}.{kind.__qualname__}, which has no attributes")
        self._attributes(value)

    def _note_home(self, kind: type) -> None:
        if self._is_state:
            self._homes.add(module_of(kind).partition(".")[0])

    def _attributes(self, value: Any) -> None:
        held = getattr(value, "__dict__", None)
        own = dict(held) if isinstance(held, Mapping) else {}
        for kind in type(value).__mro__:
            names = [name for name, one in vars(kind).items() if isinstance(one, MemberDescriptorType)]
            own.update((name, getattr(value, name)) for name in names if hasattr(value, name))
        for name in sorted(own.keys() - libraries.OF_ONE_PROCESS - {libraries.LEFT_AS_DEFAULT}, key=str):
            self.say("attribute", name)
            self._value(own[name])

    def _parameter(self, tensor: torch.Tensor | None) -> None:
        if tensor is None or id(tensor) in self._met:
            self._value(tensor)
            return
        self._met[id(tensor)] = len(self._met), tensor
        self.say(tensor.dtype, tuple(tensor.shape), tensor.stride(), tensor.requires_grad)
        if foreign_library(tensor):
            raise HasNoContent(f"a parameter that is a {type(tensor).__qualname__}")
        self._hung_on(tensor)

    def _hung_on(self, tensor: torch.Tensor) -> None:
        """Adds what somebody hung on a weight, which a forward may read."""
        for name, value in sorted(attributes_of(tensor).items()):
            self.say("attribute", name)
            self._value(value)

    def _tensor(self, tensor: torch.Tensor) -> None:
        if foreign_library(tensor):
            raise HasNoContent(f"a tensor that is a {type(tensor).__qualname__}")
        self.say("data", tensor.dtype, tuple(tensor.shape), tensor.stride(), tensor.requires_grad)
        if tensor.layout is not torch.strided:
            raise HasNoContent(f"a tensor of the layout {tensor.layout}")
        if has_numbers(tensor):
            plain = tensor.detach().cpu().contiguous()
            self._digest.update(plain.view(-1).view(torch.uint8).numpy().data)
        if self._is_state:
            self._hung_on(tensor)
        else:
            self._attributes(tensor)

    def _array(self, array: Any) -> None:
        if array.dtype.hasobject:
            raise HasNoContent("an array of objects")
        self.say("array", str(array.dtype), array.shape)
        self._digest.update(array.tobytes())

    def _apart(self, value: Any) -> str:
        """A member of a set: such are told one by one and sorted, for their order says nothing."""
        if isinstance(value, (*_PLAIN, float, torch.dtype)):
            return f"{type(value).__name__} {value!r}"
        if isinstance(value, (tuple, frozenset)):
            found = [self._apart(item) for item in value]
            return f"{type(value).__name__} {found if isinstance(value, tuple) else sorted(found)}"
        if isinstance(value, (type, FunctionType)):
            return f"{value.__module__} {value.__qualname__}"
        if isinstance(value, Enum):
            return f"{type(value).__qualname__} {value.name}"
        if self._is_state:
            raise HasNoContent(f"a set with a {type(value).__qualname__}")
        return type(value).__qualname__

    def _module(self, module: nn.Module) -> None:
        raise NotImplementedError

    def _class(self, cls: type) -> None:
        raise NotImplementedError

    def _function(self, function: FunctionType) -> None:
        raise NotImplementedError


def _is_described(value: Any) -> bool:
    """Whether a member of a set says more than its name."""
    return isinstance(value, (tuple, frozenset, type, FunctionType, Enum))


def _has_attributes(value: Any) -> bool:
    return hasattr(value, "__dict__") or any("__slots__" in vars(kind) for kind in type(value).__mro__)
