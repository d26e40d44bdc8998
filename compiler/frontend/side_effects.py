"""Refuses a module that keeps something of each call: it counts, collects or stores what a program would not.

A program computes results and leaves the module alone. What a call leaves in it for good (a table for a size, a flag)
does not matter, for the next call finds it there or makes the same; what changes at every call does. So a module that
its trace has changed is called again on fake tensors, which takes a fraction of the time of the trace; where the second
and the third call change it again, it must run as it is. Looked at are the attributes, containers and plain objects
that a module reaches, which tensors it holds as its weights, the variables of its hooks and own functions, context
variables, the globals of its code, and the generators that Python and numpy draw random numbers by. Where the first of
these calls fails, what is sure counts alone; where a later one does, the module goes another way by what it keeps.
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextvars import copy_context
from types import CellType
from typing import Any

import torch
from torch import nn

from ..errors import SideEffectError
from .outside import Named
from .random_numbers import seeds_noted
from .rollback import contents, contents_beside, contents_of, contents_of_globals, contents_of_weights, restore

_NUMBERS = (int, float, complex, str, bytes)


class Kept:
    """What the attributes of a module and of its parts, and what they reach beside, hold at one moment."""

    def __init__(self, module: nn.Module, beside: Iterable[Any] = ()) -> None:
        self._module = module
        self._weights = contents_of_weights(module)
        self._held = [*contents_of(module), *contents_beside(module)]
        self._shared = [*contents_of_globals(module), *((one, contents(one)) for one in beside)]
        self._context = dict(copy_context())
        self._computed = {id(vars(child)): _computed_anew(child) for child in module.modules()}

    def begin(self) -> None:
        """Takes context variables and weights as they are now: a trace has set and replaced some by then."""
        self._context = dict(copy_context())
        self._weights = contents_of_weights(self._module)

    def changes(self) -> dict[Any, bool]:
        """What has another value since then, and whether it is sure that the next call would change it again."""
        found: dict[Any, bool] = {}
        for container, before in [*self._held, *self._shared]:
            if isinstance(container, Named):
                found |= _changed_keys(container.read(), before, ())
            elif isinstance(container, dict):
                found |= _changed_keys(container, before, self._computed.get(id(container), ()))
            elif not _alike(now := contents(container), before):
                name = (
                    "a variable of a function" if isinstance(container, CellType) else f"a {type(container).__name__}"
                )
                found[name] = len(now) > len(before) or _are_numbers(now, before)
        for place, before in self._weights:
            found |= _changed_keys(place, before, ())
        for variable, value in copy_context().items():
            if not _alike(value, self._context.get(variable)):
                found[f"the context variable {variable.name}"] = False
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


def _are_numbers(now: list[Any], before: list[Any]) -> bool:
    return len(now) == len(before) == 1 and isinstance(now[0], _NUMBERS) and isinstance(before[0], _NUMBERS)


@contextlib.contextmanager
def noted_changes(module: nn.Module, beside: Sequence[Any] = ()) -> Iterator[dict[Any, bool]]:
    """Fills the dictionary with what the calls of a module change meanwhile; a trace itself takes most of it back.

    Raises SideEffectError where a call changes a list or dict that it was given, or sets a seed.
    """
    found: dict[Any, bool] = {}
    if isinstance(module, torch.jit.ScriptModule):  # takes no hooks, and is no module to be traced
        yield found
        return
    before, given = Kept(module, beside), list[tuple[Any, Any]]()

    def begin(_: nn.Module, args: Any, kwargs: Any) -> None:
        before.begin()
        seeds.begin()
        _note(given, (args, kwargs))

    def end(*_: Any) -> None:
        seeds.end()
        found.update(before.changes())

    with seeds_noted() as seeds:
        hooks = (
            module.register_forward_pre_hook(begin, with_kwargs=True), module.register_forward_hook(end),
        )  # fmt: skip
        try:
            yield found
        finally:
            for hook in hooks:
                hook.remove()
    if seeds.was_set:
        raise SideEffectError(
            f"{type(module).__name__} sets the state of PyTorch's random numbers at each call, which no program does: "
            "give it a generator, or set the seed before the call"
        )
    if any(_gained(contents(one), held) for one, held in given):
        raise SideEffectError(
            f"{type(module).__name__} writes into a list or dict that it is given, which no program does: return what "
            "is to be kept"
        )


def _gained(now: Any, before: Any) -> bool:
    """Whether a list or dict holds what it did not; taking out what it holds is how models read a list in turn."""
    values = (one.values() if isinstance(one, dict) else one for one in (now, before))
    mine, known = (list(map(id, one)) for one in values)
    return not set(mine) <= set(known)


def _note(given: list[tuple[Any, Any]], value: Any) -> None:
    """Notes the lists and dicts among arguments, with what they hold."""
    if isinstance(value, (list, dict)):
        given.append((value, contents(value)))
    if isinstance(value, (list, tuple, dict)):
        for one in value.values() if isinstance(value, dict) else value:
            _note(given, one)


def refuse_side_effects(
    module: nn.Module, found: Mapping[Any, bool], call: Callable[[], object], beside: Sequence[Any] = ()
) -> None:
    """Raises SideEffectError for a module that a call has changed so, if every other call changes it again.

    The module must be by now what it was before that call.
    """
    try:
        call()
    except Exception:  # what looks at values cannot be called with fakes
        again = _sure(found)
    else:
        again = _changed_again(module, found, call, beside)
    if again:
        names = ", ".join(sorted(map(str, again))[:3])
        raise SideEffectError(
            f"{type(module).__name__} changes {names} at each call, which no program does: return what is to be kept, "
            "or keep it in a hook"
        )


def _changed_again(
    module: nn.Module, found: Mapping[Any, bool], call: Callable[[], object], beside: Sequence[Any]
) -> list[Any]:
    """What the next calls change again, of which one may settle what the first began."""
    changed: list[Any] = []
    try:
        for _ in range(2):
            before = Kept(module, beside)
            call()
            now = before.changes()
            changed = list(now)
            if not changed or _sure(now):
                break
    except Exception:  # the first call was none such: what it left has the next one look at values
        return _sure(found) or list(found)
    return changed


def _sure(found: Mapping[Any, bool]) -> list[Any]:
    return [name for name, is_sure in found.items() if is_sure]


def _changed_keys(now: dict[Any, Any], before: Mapping[Any, Any], computed: tuple[str, ...]) -> dict[Any, bool]:
    found: dict[Any, bool] = {}
    for key, value in dict.items(now):  # a class of its own may make them anew
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
    """The attributes that PyTorch's own hooks compute before each call (of weight and spectral norms, and pruning)."""
    hooks = [one for one in module._forward_pre_hooks.values() if type(one).__module__.startswith("torch.nn.utils.")]
    return tuple(str(getattr(one, "name", getattr(one, "_tensor_name", ""))) for one in hooks)
