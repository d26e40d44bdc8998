"""Compares all that two calls return, and finds what a trace has left behind."""

from __future__ import annotations

import contextvars
import functools
import gc
from collections.abc import Iterator, Mapping
from types import BuiltinFunctionType, CellType, FunctionType, MethodType, ModuleType
from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensor

_PLAIN = (str, bytes, int, float, complex, bool, type(None), torch.dtype, torch.device, type, ModuleType)


def differences(found: Any, expected: Any, path: str = "result") -> Iterator[str]:
    """Where one result is not the other, in whatever containers and objects tensors lie; devices count too."""
    if isinstance(expected, torch.Tensor):
        yield from _tensors(found, expected, path)
    elif isinstance(expected, Mapping):
        if not isinstance(found, Mapping) or list(found) != list(expected):
            yield f"{path} has {_keys(found)} in place of {_keys(expected)}"
            return
        for key in expected:
            yield from differences(found[key], expected[key], f"{path}.{key}")
    elif isinstance(expected, (list, tuple)):
        if type(found) is not type(expected) or len(found) != len(expected):
            yield f"{path} is {_brief(found)} in place of {_brief(expected)}"
            return
        for index, (one, other) in enumerate(zip(found, expected, strict=True)):
            yield from differences(one, other, f"{path}[{index}]")
    elif isinstance(expected, _PLAIN):
        if found != expected:
            yield f"{path} is {_brief(found)} in place of {_brief(expected)}"
    elif type(found) is not type(expected):
        yield f"{path} is {_brief(found)} in place of {_brief(expected)}"
    elif hasattr(expected, "layers"):  # a cache
        yield from differences([vars(one) for one in found.layers], [vars(one) for one in expected.layers], path)


def _tensors(found: Any, expected: torch.Tensor, path: str) -> Iterator[str]:
    if not isinstance(found, torch.Tensor) or isinstance(found, FakeTensor):
        yield f"{path} is {_brief(found)} in place of a tensor"
    elif (found.shape, found.dtype) != (expected.shape, expected.dtype):
        yield f"{path} is {_brief(found)} in place of {_brief(expected)}"
    elif found.device != expected.device:
        yield f"{path} lies on {found.device} in place of {expected.device}"
    elif not torch.equal(torch.nan_to_num(found), torch.nan_to_num(expected)):
        yield f"{path} differs by {(found - expected).abs().max().item():.1e}"


def _keys(value: Any) -> Any:
    return list(value) if isinstance(value, Mapping) else _brief(value)


def _brief(value: Any) -> str:
    if isinstance(value, torch.Tensor):
        return f"a {type(value).__name__} {tuple(value.shape)} in {value.dtype}"
    length = f" of {len(value)}" if isinstance(value, (list, tuple)) else ""
    return f"a {type(value).__name__}{length}"


def fakes_within(*roots: Any) -> list[str]:
    """Paths to fake tensors that are left in what somebody holds, or in a context variable of this thread."""
    named = [(f"root {index}", root) for index, root in enumerate(roots)]
    named += [(f"context variable {one.name}", value) for one, value in contextvars.copy_context().items()]
    seen: set[int] = set()
    found: list[str] = []
    kept: list[Any] = []
    while named:
        path, value = named.pop()
        if isinstance(value, FakeTensor):
            found.append(path)
        if isinstance(value, (*_PLAIN, torch.Tensor)) or id(value) in seen or _is_ours(value):
            continue
        seen.add(id(value))
        kept.append(value)
        named.extend((f"{path}{step}", inner) for step, inner in _steps(value))
    return found


def _is_ours(value: Any) -> bool:
    return type(value).__module__.partition(".")[0] == "dovetail"


def _steps(value: Any) -> Iterator[tuple[str, Any]]:
    if isinstance(value, Mapping):
        for key, inner in list(value.items()):
            yield f"[{key!r:.40}]", inner
    elif isinstance(value, (list, tuple, set, frozenset)):
        for index, inner in enumerate(list(value)):
            yield f"[{index}]", inner
    elif isinstance(value, functools._lru_cache_wrapper):
        for index, inner in enumerate(gc.get_referents(value)):
            yield f".cache[{index}]", inner
    elif isinstance(value, MethodType):
        yield ".__self__", value.__self__
        yield ".__func__", value.__func__
    elif isinstance(value, FunctionType):
        for inner in (*(value.__closure__ or ()), *(value.__defaults__ or ())):
            yield "()", inner
    elif isinstance(value, CellType):
        try:
            yield "", value.cell_contents
        except ValueError:
            return
    if not isinstance(value, (FunctionType, BuiltinFunctionType)):
        for name, inner in list(getattr(value, "__dict__", {}).items()):
            yield f".{name}", inner
