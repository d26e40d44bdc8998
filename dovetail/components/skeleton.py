"""A copy of a module's structure to be traced: the module itself stays untouched, and other threads may call it.

The copy has modules, containers and hook lists of its own and shares tensors, functions and plain objects. So what a
trace puts in place of weights, or a model writes into itself, is in the copy alone.
"""

from __future__ import annotations

import contextlib
import copy
import functools
from collections.abc import Iterator, Mapping
from types import BuiltinFunctionType, FunctionType, MethodType, ModuleType
from typing import Any

import torch
from torch import nn

from ..conventions.hooks import is_of_libraries
from ..conventions.replacements import Replacement

_CHILDREN = "_modules"
_TENSORS = ("_parameters", "_buffers")
_LEFT_OUT = ("_compiled_call_impl",)  # what nn.Module.compile leaves in a module: it cannot be traced through
_BEFORE, _AFTER = "_forward_pre_hooks", "_forward_hooks"
_ATOMS = (type, FunctionType, BuiltinFunctionType, ModuleType, torch.Tensor, str, bytes, int, float, type(None))


@contextlib.contextmanager
def skeleton(
    module: nn.Module,
    instead: Mapping[nn.Module, nn.Module] | None = None,
) -> Iterator[nn.Module]:
    """A copy of a module's structure without the hooks of the module itself; afterwards it holds no tensor.

    Args:
        module: what is copied, with all of its parts.
        instead: parts that others stand for.
    """
    copier = _Copier(module, instead or {})
    made = copier.of(module)
    vars(made)[_AFTER] = type(vars(made)[_AFTER])()  # whoever calls the module runs them, on what the program returns
    hooks = vars(made)[_BEFORE]  # of which those of libraries compute weights anew, and are run there too
    vars(made)[_BEFORE] = type(hooks)((key, hook) for key, hook in hooks.items() if is_of_libraries(hook))
    try:
        yield made
    finally:
        for one in copier.made.values():
            for name in _TENSORS:
                vars(one)[name].clear()


class _Copier:
    def __init__(self, root: nn.Module, instead: Mapping[nn.Module, nn.Module]) -> None:
        self._tree = {id(one) for one in root.modules()}
        self._instead = instead
        self.made: dict[int, nn.Module] = {}
        self._copied: dict[int, Any] = {}

    def of(self, module: nn.Module) -> nn.Module:
        """The copy of a module of the tree; of one that stands in two places there is one."""
        module = self._instead.get(module, module)
        if isinstance(module, torch.jit.ScriptModule):
            return module
        if id(module) not in self.made:
            self.made[id(module)] = made = object.__new__(type(module))
            vars(made).update(self._attributes(module))
        return self.made[id(module)]

    def _attributes(self, module: nn.Module) -> Iterator[tuple[str, Any]]:
        for name, value in list(vars(module).items()):
            if name == _CHILDREN:
                yield name, {key: None if child is None else self.of(child) for key, child in value.items()}
            elif name in _TENSORS:
                yield name, dict(value)
            elif not isinstance(value, Replacement) and name not in _LEFT_OUT:
                yield name, self._value(value)
            elif isinstance(value, Replacement) and value.replaced is not None:
                yield name, self._value(value.replaced)

    def _value(self, value: Any) -> Any:
        """A value of an attribute, with the copies of modules in place of these."""
        if isinstance(value, nn.Module):
            return self.of(value) if id(value) in self._tree else value
        if isinstance(value, _ATOMS):
            return value
        if isinstance(value, MethodType):
            return MethodType(value.__func__, self._value(value.__self__))
        if id(value) not in self._copied:
            self._copied[id(value)] = value  # for what leads to itself
            self._copied[id(value)] = self._copy_of(value)
        return self._copied[id(value)]

    def _copy_of(self, value: Any) -> Any:
        if type(value) in (list, set):
            return type(value)(map(self._value, value))
        if type(value) is tuple:
            return tuple(map(self._value, value))
        if type(value) is dict:
            return {key: self._value(item) for key, item in value.items()}
        if isinstance(value, dict) and hasattr(value, "copy") and type(value).__module__ == "collections":
            return value.copy()
        if isinstance(value, functools.partial):
            return functools.partial(value.func, *map(self._value, value.args), **self._value(value.keywords))
        if self._holds_modules(value):
            made = copy.copy(value)
            vars(made).update({name: self._value(item) for name, item in vars(value).items()})
            return made
        return value

    def _holds_modules(self, value: Any) -> bool:
        held = getattr(value, "__dict__", None)
        return isinstance(held, dict) and any(id(item) in self._tree for item in held.values())
