"""Functions of PyTorch that somebody has replaced by others which call them are applied once while they are traced.

A function that PyTorch has in Python (``F.silu``) asks first whether a mode is active, as several are during a trace,
and has the mode call what stands under its own name now. That is the replacement, which calls the original, which asks
the next mode: eager applies it once, a trace would once more for each mode. A module that replaces some itself while it
runs is traced again. Where methods of tensors were replaced nothing is traced.
"""

from __future__ import annotations

import contextlib
import functools
import os
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from types import (
    BuiltinFunctionType,
    FrameType,
    FunctionType,
    GenericAlias,
    MethodDescriptorType,
    MethodWrapperType,
    WrapperDescriptorType,
)
from typing import Any, Optional

import torch
from torch import nn
from torch.overrides import TorchFunctionMode, handle_torch_function

_OWN = str(Path(torch.__file__).parent) + os.sep
_ASKING = ("has_torch_function", "has_torch_function_unary", "has_torch_function_variadic")
_HOMES = (torch.nn.functional, torch.functional)
_OPERATIONS = (BuiltinFunctionType, MethodDescriptorType, WrapperDescriptorType, MethodWrapperType)
_NO_REPLACEMENTS = (BuiltinFunctionType, type, GenericAlias, type(Optional))


def are_any() -> bool:
    """Whether any function of PyTorch is replaced now."""
    return any(_foreign())


def is_replaced(func: Any) -> bool:
    """Whether what is called stands in the place of a function of PyTorch now."""
    is_known = isinstance(func, _OPERATIONS) or id(func) in _FIRST
    return not is_known and any(one is func for one in _foreign())


@contextlib.contextmanager
def applied_once(module: nn.Module) -> Iterator[None]:
    """Has replaced functions of PyTorch be applied once in each call of a module."""
    if isinstance(module, torch.jit.ScriptModule):
        yield
        return
    own, held = module.forward, vars(module).get("forward")

    @functools.wraps(own)
    def forward(*args: Any, **kwargs: Any) -> Any:
        with _AppliedOnce():  # hooks would not be called where the forward raises: torch.export drops them then
            return own(*args, **kwargs)

    vars(module)["forward"] = forward
    try:
        yield
    finally:
        vars(module).pop("forward")
        if held is not None:
            vars(module)["forward"] = held


def _functions() -> Iterator[Any]:
    return (value for home in _HOMES for value in list(vars(home).values()) if callable(value))


def _is_own(function: Any) -> bool:
    """Whether a callable is PyTorch's own, and wraps nothing else, by what can be told of it alone."""
    if not isinstance(function, FunctionType):
        return isinstance(function, _NO_REPLACEMENTS)
    inner = vars(function).get("__wrapped__")
    return function.__code__.co_filename.startswith(_OWN) and (inner is None or _is_own(inner))


def _foreign() -> Iterator[Any]:
    """The callables that somebody has put there: functions, objects, bound methods and what caches answers."""
    return (one for one in _functions() if id(one) not in _FIRST)


class _AppliedOnce(TorchFunctionMode):
    """Answers an original with its own body, where it would call the replacement; must be the innermost mode."""

    def __torch_function__(
        self,
        func: Callable[..., Any],
        types: Sequence[type],
        args: Sequence[Any] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        """Runs the original that asks, or calls the function as it is."""
        asking = sys._getframe(1)
        body = asking.f_back if asking.f_code is handle_torch_function.__code__ else None
        is_own = body is not None and body.f_code.co_filename.startswith(_OWN)
        if body is not None and is_own and is_replaced(func):
            func = _original(body)
        return func(*args, **(kwargs or {}))


def _original(body: FrameType) -> Callable[..., Any]:
    """The function whose body runs, but for that it asks for no mode: operations themselves do."""
    return FunctionType(body.f_code, {**body.f_globals, **dict.fromkeys(_ASKING, _no)})


def _no(*_: Any) -> bool:
    return False


_FIRST = {id(one): one for one in _functions() if _is_own(one)}
"""What stands there of PyTorch's own; others may have replaced some before."""
