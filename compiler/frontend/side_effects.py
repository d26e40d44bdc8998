"""Refuses a module that keeps something of each call: it counts, collects or stores what a program would not.

A program computes results and leaves the module alone. What a call leaves in it for good (a table for a size, a flag)
does not matter, for the next call finds it there or makes the same; what changes at every call does. So a module that
its trace has changed is called twice more on fake tensors, which takes a fraction of the time of the trace; where the
second call changes it again, it must run as it is. Looked at are the attributes, containers and plain objects that a
module reaches; not the variables of closures and of Python modules. Where these calls fail, what is sure counts alone.
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import torch
from torch import nn

from ..errors import SideEffectError
from .rollback import contents_of, restore

_NUMBERS = (int, float, complex, str)


class Kept:
    """What the attributes of a module and of its parts hold at one moment."""

    def __init__(self, module: nn.Module) -> None:
        self._held = contents_of(module)
        self._computed = {id(vars(child)): _computed_anew(child) for child in module.modules()}

    def changes(self) -> dict[Any, bool]:
        """What has another value since then, and whether it is sure that the next call would change it again."""
        found: dict[Any, bool] = {}
        for container, before in self._held:
            if isinstance(container, dict):
                found |= _changed_keys(container, before, self._computed.get(id(container), ()))
            elif not _alike(list(container), before):
                found[f"a {type(container).__name__}"] = len(container) > len(before)
        return found

    def give_back(self) -> None:
        """Takes back what calls have changed since then; what others have put into attributes meanwhile stays."""
        for container, before in self._held:
            if not isinstance(container, dict):
                restore(container, before)
                continue
            for key in _changed_keys(container, before, ()):
                if key in before:
                    container[key] = before[key]
                else:
                    del container[key]


@contextlib.contextmanager
def noted_changes(module: nn.Module) -> Iterator[dict[Any, bool]]:
    """Fills the dictionary with what the calls of a module change meanwhile; a trace itself takes most of it back."""
    found: dict[Any, bool] = {}
    if isinstance(module, torch.jit.ScriptModule):  # takes no hooks, and is no module to be traced
        yield found
        return
    before = Kept(module)
    hook = module.register_forward_hook(lambda *_: found.update(before.changes()))
    try:
        yield found
    finally:
        hook.remove()


def refuse_side_effects(module: nn.Module, found: Mapping[Any, bool], call: Callable[[], object]) -> None:
    """Raises SideEffectError for a module that a call has changed so, if every other call changes it again."""
    if not found:
        return
    try:
        call()
        between = Kept(module)
        call()
        again = list(between.changes())
    except Exception:  # what looks at values cannot be called with fakes
        again = [name for name, is_sure in found.items() if is_sure]
    if again:
        names = ", ".join(sorted(map(str, again))[:3])
        raise SideEffectError(
            f"{type(module).__name__} changes {names} at each call, which no program does: return what is to be kept, "
            "or keep it in a hook"
        )


def _changed_keys(now: Mapping[Any, Any], before: Mapping[Any, Any], computed: tuple[str, ...]) -> dict[Any, bool]:
    found: dict[Any, bool] = {}
    for key, value in now.items():
        if key in computed or (key in before and _alike(value, before[key])) or not _counts(value):
            continue
        found[key] = key in before and isinstance(value, _NUMBERS) and isinstance(before[key], _NUMBERS)
    return found


def _counts(value: Any) -> bool:
    """Whether a value may be one of many: flags and functions are not."""
    return isinstance(value, (torch.Tensor, dict, list, set, tuple, *_NUMBERS)) and not isinstance(value, bool)


def _alike(one: Any, other: Any) -> bool:
    """Whether two values are the same object, or the same plain value; a factor may come back rounded."""
    if one is other:
        return True
    if isinstance(one, (list, tuple)) and isinstance(other, (list, tuple)):
        return len(one) == len(other) and all(map(_alike, one, other))
    if isinstance(one, dict) and isinstance(other, dict):
        return one.keys() == other.keys() and all(_alike(value, other[key]) for key, value in one.items())
    if isinstance(one, float) and isinstance(other, float):
        return math.isclose(one, other)
    return isinstance(one, (*_NUMBERS, set)) and type(one) is type(other) and bool(one == other)


def _computed_anew(module: nn.Module) -> tuple[str, ...]:
    """The attributes that PyTorch's own hooks compute before each call (``weight_norm``, ``spectral_norm``)."""
    hooks = module._forward_pre_hooks.values()
    return tuple(str(getattr(one, "name", "")) for one in hooks if type(one).__module__.startswith("torch.nn.utils."))
