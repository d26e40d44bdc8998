"""What dovetail puts in place of a module's own attributes: methods, and what copies and pickles ask for."""

from __future__ import annotations

import copyreg
import inspect
import weakref
from collections.abc import Callable
from types import MethodType
from typing import Any

import torch
from torch import nn


class Replacement:
    """What dovetail puts into the attributes of a module, and what was there before; copies of the module have that."""

    __slots__ = ("__weakref__",)

    @property
    def replaced(self) -> Any:
        """The module's own attribute, or None."""
        return None


def has_own_forward(module: nn.Module) -> bool:
    """Whether a module has a function of somebody's in the place of its class's ``forward``."""
    there = vars(module).get("forward")
    if isinstance(there, Replacement):
        return there.replaced is not None
    if isinstance(there, MethodType) and there.__self__ is module:
        return there.__func__ is not type(module).forward
    return there is not None


class Method(Replacement):
    """What stands in a module in place of a method: calls ``around`` with the module's own method and the arguments."""

    __slots__ = ("__name__", "_around", "_module")

    def __init__(self, module: nn.Module, name: str, around: Callable[..., Any]) -> None:
        self.__name__ = name
        self._module = weakref.ref(module)
        self._around = around

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Calls ``around``."""
        return self._around(self._original, *args, **kwargs)

    @property
    def __signature__(self) -> inspect.Signature:
        """The parameters of the module's own method."""
        return inspect.signature(self._original)

    @property
    def _original(self) -> Callable[..., Any]:
        module = self._module()
        assert module is not None
        return MethodType(getattr(type(module), self.__name__), module)


class Bare(Replacement):
    """Stands for a module's ``__reduce_ex__``: copies and pickles of a compiled module are as if it was not compiled.

    ``data_of`` gives the tensor that a copy has in the place of a weight.
    """

    __slots__ = ("_data_of", "_module")

    def __init__(self, module: nn.Module, data_of: Callable[[torch.Tensor], torch.Tensor]) -> None:
        self._module = weakref.ref(module)
        self._data_of = data_of

    def __call__(self, _: Any) -> Any:
        """What copy and pickle ask for."""
        module = self._module()
        assert module is not None
        state = {name: value for name, value in vars(module).items() if not isinstance(value, Replacement)}
        replacements = {name: value.replaced for name, value in vars(module).items() if isinstance(value, Replacement)}
        state |= {name: value for name, value in replacements.items() if value is not None}
        for name in ("_parameters", "_buffers"):
            held = state[name]
            state[name] = type(held)(
                (key, None if tensor is None else self._data_of(tensor)) for key, tensor in held.items()
            )
        return copyreg.__newobj__, (type(module),), state  # type: ignore[attr-defined]


_REDUCE = "__reduce_ex__"


def copy_bare(module: nn.Module, data_of: Callable[[torch.Tensor], torch.Tensor]) -> None:
    """Has copies and pickles of a module be as if it was not compiled."""
    module.__dict__[_REDUCE] = Bare(module, data_of)


def copy_as_is(module: nn.Module) -> None:
    """Undoes `copy_bare`."""
    if isinstance(vars(module).get(_REDUCE), Bare):
        del module.__dict__[_REDUCE]


def put_method(module: nn.Module, name: str, around: Callable[..., Any]) -> None:
    """Has ``around`` called in place of a method, if the module has one of that name."""
    if hasattr(type(module), name):
        module.__dict__[name] = Method(module, name, around)


def take_methods_out(module: nn.Module) -> None:
    """Gives a module its own methods back."""
    for name in [name for name, value in vars(module).items() if isinstance(value, Method)]:
        del module.__dict__[name]
