"""Members of the classes of every tensor and every module that somebody has put there while the process runs.

``torch.Tensor.__add__ = mine`` changes what each model computes, and is in none of its attributes. A function says
whose it is by its globals, for a decorator such as ``functools.wraps`` gives it another's module by name.

A method in the place of one of PyTorch's tensors cannot be traced: PyTorch finds it by its name once more for each mode
of a trace, and would call it as often.
"""

from __future__ import annotations

import itertools
import operator
from collections.abc import Iterator, Mapping
from types import FunctionType, GetSetDescriptorType
from typing import Any

import torch
from torch import nn

TENSORS = (torch.Tensor, nn.Parameter)
_CLASSES = (*TENSORS, nn.Module)
_MEMBERS = tuple(vars(one) for one in _CLASSES)
_FIRST: Mapping[type, Mapping[str, Any]] = {one: dict(vars(one)) for one in _CLASSES}
_OWN = ("torch", __name__.partition(".")[0])
_seen: tuple[list[Any], str] = ([], "")


def members() -> Iterator[Any]:
    """What these classes have, to be compared by identity."""
    return itertools.chain.from_iterable([held.values() for held in _MEMBERS])


def replaced_method() -> str:
    """A method of tensors that somebody has put in the place of PyTorch's own, or nothing; takes some microseconds."""
    global _seen
    now = [value for held in _MEMBERS[: len(TENSORS)] for value in held.values()]
    known, found = _seen
    if len(now) != len(known) or not all(map(operator.is_, now, known)):
        found = next((f"{cls}.{name}" for cls, name, _ in patched(TENSORS) if _is_replaced(name)), "")
        _seen = now, found
    return found


def _is_replaced(name: str) -> bool:
    return hasattr(torch._C.TensorBase, name) or any(name in _FIRST[cls] for cls in TENSORS)


def patched(classes: tuple[type, ...] = _CLASSES) -> Iterator[tuple[str, str, Any]]:
    """What is not PyTorch's own of these classes: the class, the name and the function."""
    for cls in classes:
        for name, value in list(vars(cls).items()):
            if _is_foreign(value) or _is_moved(value, _FIRST[cls].get(name), cls):
                yield cls.__qualname__, name, value


def _is_foreign(value: Any) -> bool:
    """Whether a function, or what is made of one, is somebody's own."""
    function = _function_of(value)
    if not callable(function) or isinstance(function, (type, GetSetDescriptorType)):
        return False
    homes = [getattr(function, "__module__", None) or "torch"]
    if isinstance(function, FunctionType):
        homes.append(str(function.__globals__.get("__name__")))
    return not all(home.partition(".")[0] in (*_OWN, "builtins", "typing") for home in homes)


def _is_moved(value: Any, first: Any, cls: type) -> bool:
    """Whether a function of PyTorch's own stands under a name that is not its."""
    if value is first or isinstance(value, (type, str, int, dict, type(None), GetSetDescriptorType)):
        return False
    known = {id(one) for one in _FIRST[cls].values()}
    return id(value) in known or not isinstance(_function_of(value), FunctionType)


def _function_of(value: Any) -> Any:
    """The function of a property, or of a method of a class."""
    if isinstance(value, property):
        return value.fget
    return getattr(value, "__func__", value)
