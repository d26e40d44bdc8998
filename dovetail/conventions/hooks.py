"""Whose hooks are on modules: those of PyTorch and transformers are parts of a model."""

from __future__ import annotations

import functools
from operator import attrgetter
from types import FunctionType
from typing import Any

_LIBRARIES = ("torch", "transformers")
_CALLING = attrgetter("__call__", "_wrapped_call_impl", "_call_impl", "_slow_forward")
"""What calls each module, and its hooks: a function in the place of one is a hook of all modules too."""


def is_of_libraries(function: Any) -> bool:
    """Whether a hook or function belongs to PyTorch or transformers, whose own hooks are parts of a model."""
    home = getattr(function, "__module__", None) or type(function).__module__
    if home.partition(".")[0] not in _LIBRARIES:
        return False
    if not isinstance(function, FunctionType):
        return True
    return str(function.__globals__.get("__name__")).partition(".")[0] in _LIBRARIES  # whatever functools.wraps says


def has_foreign_hooks() -> bool:
    """Whether somebody other than these libraries has hooks on all modules that there are, or calls them himself."""
    from torch.nn.modules import module

    hooks = (*module._global_forward_hooks.values(), *module._global_forward_pre_hooks.values())
    return not all(map(is_of_libraries, hooks)) or _is_foreign(_CALLING(module.Module))


@functools.lru_cache(maxsize=8)
def _is_foreign(functions: tuple[Any, ...]) -> bool:
    return not all(map(is_of_libraries, functions))
