"""The calls of a component, and what is done around one: arguments are moved, results made ordinary tensors."""

from __future__ import annotations

import contextlib
import copy
from collections import OrderedDict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from types import MethodType
from typing import Any

import torch
from torch import nn
from torch.utils import _pytree as pytree

from .compiled import CompiledModule
from .compiler.errors import TraceError
from .lengths import Lengths
from .runtime.transfers import handed

CALL = "_dovetail_call"


@dataclass
class Call:
    """One way in which a component or a part of it is called, and the programs compiled for it so far."""

    path: str
    method: str
    module: nn.Module
    original: Callable[..., Any]
    was_own: bool
    answer: Callable[..., Any] | None = None
    whole: Callable[..., Any] | None = None
    failures: int = 0
    programs: OrderedDict[Any, Callable[..., Any]] = field(default_factory=OrderedDict)
    lengths: Lengths = field(default_factory=Lengths)
    traces: int = 0

    @classmethod
    def of(cls, path: str, method: str, module: nn.Module) -> Call:
        """The call of a module; where another component has the module too, what the module itself does."""
        known = getattr(vars(module).get(method), CALL, None)
        if known is not None:
            return cls(path, method, module, known.original, known.was_own)
        return cls(path, method, module, getattr(module, method), method in vars(module))

    def __str__(self) -> str:
        return (
            ".".join(part for part in (self.path, self.method if self.method != "forward" else "") if part) or "forward"
        )

    def keep(self, key: Any, program: Callable[..., Any], most: int) -> None:
        """Keeps a program; of more than so many, the one that was used longest ago is forgotten, with its weights."""
        self.programs[key] = program
        while len(self.programs) > most:
            _, oldest = self.programs.popitem(last=False)
            if isinstance(oldest, CompiledModule) and oldest not in self.programs.values():
                oldest.unload()

    def swap_in(self) -> None:
        """Puts the compiled call in place."""
        self.module.__dict__[self.method] = self.answer

    def swap_out(self) -> None:
        """Gives the module its own call back."""
        self.module.__dict__.pop(self.method, None)
        if self.was_own:
            self.module.__dict__[self.method] = self.original

    def traceable(self) -> nn.Module:
        """The module whose forward is this call; for a method a shallow copy that shares all weights."""
        if self.method == "forward":
            return self.module
        view = copy.copy(self.module)
        view.__dict__["forward"] = MethodType(getattr(type(self.module), self.method), view)
        return view


@contextlib.contextmanager
def without_caches(module: nn.Module) -> Iterator[None]:
    """Language models keep what they computed for the next token; where they only encode a text, nobody reads it."""
    configs = {id(config): config for child in module.modules() if (config := getattr(child, "config", None))}
    caching = [config for config in configs.values() if getattr(config, "__dict__", {}).get("use_cache") is True]
    try:
        for config in caching:
            config.use_cache = False
        yield
    finally:
        for config in caching:
            config.use_cache = True


def moved(value: Any, device: torch.device) -> Any:
    """An argument or result on a device; a container whose tensors are there stays the object it is."""
    leaves = (leaf for leaf in pytree.tree_leaves(value) if isinstance(leaf, torch.Tensor))
    if all(leaf.device == device for leaf in leaves):
        return value
    return pytree.tree_map(lambda leaf: handed(leaf, device) if isinstance(leaf, torch.Tensor) else leaf, value)


def refuse_what_is_no_function(
    call: Call, component: nn.Module, args: Sequence[Any], kwargs: Mapping[str, Any]
) -> None:
    """A part that is handed a list or dict may write into it, which a program would not."""
    written = (value for value in (*args, *kwargs.values()) if isinstance(value, (list, dict)) and value)
    if call.module is not component and next(written, None) is not None:
        raise TraceError(f"{call} is handed a list or dict, in which it may keep what later calls read")
