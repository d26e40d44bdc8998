"""Whose hooks are on modules: those of PyTorch and transformers are parts of a model."""

from __future__ import annotations

from typing import Any


def is_of_libraries(function: Any) -> bool:
    """Whether a hook or function belongs to PyTorch or transformers, whose own hooks are parts of a model."""
    home = getattr(function, "__module__", None) or type(function).__module__
    return home.partition(".")[0] in ("torch", "transformers")


def has_foreign_hooks() -> bool:
    """Whether somebody other than these libraries has hooks on all modules that there are."""
    from torch.nn.modules import module

    hooks = (*module._global_forward_hooks.values(), *module._global_forward_pre_hooks.values())
    return not all(map(is_of_libraries, hooks))
