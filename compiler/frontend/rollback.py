"""Keeps what a trace does to a module from outlasting it.

While it is traced, a model meets fake tensors, and may keep them: in attributes, in dicts and lists beside them, in
plain objects such as attention processors, in functools' caches, and in what its hooks, context variables and the
globals of its code lead to (``outside.py``). All of these get back what they held before; globals, which other threads
may write meanwhile, where they hold a fake tensor.
Tensors that are kept there and are neither parameters nor buffers may lie on any device; the trace sees them on the
host.
"""

from __future__ import annotations

import contextlib
import functools
import gc
import sys
from collections import OrderedDict, deque
from collections.abc import Callable, Iterable, Iterator
from types import BuiltinFunctionType, CellType, FunctionType, MethodType, ModuleType
from typing import Any

import torch
from torch import nn

from .outside import Named, contents_of_cell, has_fakes, is_ours, kept_in, reached_by_functions, reached_by_globals

_CONTAINERS = (dict, list, set, deque)

_CODE = (type, FunctionType, MethodType, BuiltinFunctionType, ModuleType)
_LEAVES = (torch.Tensor, str, int, float, bytes, *_CODE)
_NO_MODELS = ("torch", "builtins")


@contextlib.contextmanager
def rolled_back(
    module: nn.Module, on_host: Callable[[torch.Tensor], torch.Tensor], known: Iterable[Any] = ()
) -> Iterator[None]:
    """Gives attributes, containers and plain objects that a module reaches their contents back at the end.

    So it does what is ``known`` beside, that its code writes to.
    ``on_host`` makes what stands for a tensor that is no parameter or buffer meanwhile. Caches of functions that hold
    tensors are cleared at both ends: their entries are computed again when needed. Takes time linear in the attributes.
    """
    held, beside, shared = contents_of(module), contents_beside(module), contents_of_globals(module)
    beside += [(one, contents(one)) for one in known]
    on_host = _once_each(on_host)
    caches = list(_caches(module))
    _clear(caches)
    try:
        for container, before in held:
            restore(container, _on_host(before, on_host))
        yield
    finally:
        caches += _caches(module)  # some are made meanwhile
        for container, before in [*held, *beside]:
            restore(container, before)
        for container, before in shared:
            _take_fakes_out(container, before)
        _clear(caches)


def containers_of(module: nn.Module) -> Iterator[Any]:
    """Every dict, list, deque and set that attributes of a module and its parts lead to, those of its objects too."""
    parts = list(module.modules())
    weights = {id(own) for child in parts for own in (child._parameters, child._buffers, child._modules)}
    return containers_in(map(vars, parts), weights)


def containers_in(held: Iterable[Any], seen: set[int] | None = None) -> Iterator[Any]:
    """These containers, and those that they lead to, but for what was ``seen`` by identity."""
    seen, waiting = seen or set(), list(held)
    while waiting:
        container = waiting.pop()
        which = id(container.held if isinstance(container, Named) else container)
        if which in seen:
            continue
        seen.add(which)
        yield container
        for value in _values(container):
            waiting.extend(_inside(value))


def contents_of(module: nn.Module) -> list[tuple[Any, Any]]:
    """Each of these containers with a copy of what it holds now, as a dict or a list."""
    return [(one, contents(one)) for one in containers_of(module)]


def contents_of_weights(module: nn.Module) -> list[tuple[dict[str, Any], dict[str, Any]]]:
    """The same of where a module and its parts hold parameters and buffers."""
    held = ((one._parameters, one._buffers) for one in module.modules() if not isinstance(one, torch.jit.ScriptModule))
    return [(place, dict(place)) for places in held for place in places]


def contents_beside(module: nn.Module) -> list[tuple[Any, Any]]:
    """The same of what functions on a module and context variables lead to."""
    return [(one, contents(one)) for one in reached_by_functions(module)]


def contents_of_globals(module: nn.Module) -> list[tuple[Any, Any]]:
    """The same of the globals of a module's code."""
    return [(one, contents(one)) for one in reached_by_globals(module)]


def contents(container: Any) -> Any:
    """A copy of what a container or a variable of a closure holds, as a dict or a list."""
    if isinstance(container, CellType):
        return contents_of_cell(container)
    if isinstance(container, Named):
        return container.read()
    if isinstance(container, OrderedDict):  # whose order may be another than that of the dict that it is
        return {key: dict.__getitem__(container, key) for key in OrderedDict.__iter__(container)}
    return dict(dict.items(container)) if isinstance(container, dict) else list(container)


def _values(container: Any) -> list[Any]:
    if isinstance(container, Named):
        return list(container.read().values())
    return list(container.values() if isinstance(container, dict) else container)


def _inside(value: Any) -> Iterator[Any]:
    """The containers that a value is or has; modules and what is no state of a model lead nowhere."""
    if value is None or isinstance(value, (nn.Module, *_LEAVES)) or is_ours(value):
        return
    if isinstance(value, tuple):
        for item in value:
            yield from _inside(item)
    elif isinstance(value, _CONTAINERS):
        yield value
    else:
        if isinstance(getattr(value, "__dict__", None), dict):
            yield vars(value)
        yield from kept_in(value)


def _on_host(contents: Any, on_host: Callable[[torch.Tensor], torch.Tensor]) -> Any:
    """Contents of a container in which tensors are replaced, in tuples too; a parameter only of another device."""
    if isinstance(contents, torch.Tensor):
        return contents if isinstance(contents, nn.Parameter) and contents.is_cpu else on_host(contents)
    if type(contents) is dict:
        return {key: _on_host(value, on_host) if _may_hold(value) else value for key, value in contents.items()}
    if type(contents) in (list, tuple):
        items = [_on_host(value, on_host) if _may_hold(value) else value for value in contents]
        return items if isinstance(contents, list) else _tuple_of(contents, items)
    return contents


def _once_each(on_host: Callable[[torch.Tensor], torch.Tensor]) -> Callable[[torch.Tensor], torch.Tensor]:
    made: dict[int, torch.Tensor] = {}

    def once(tensor: torch.Tensor) -> torch.Tensor:
        if id(tensor) not in made:
            made[id(tensor)] = on_host(tensor)
        return made[id(tensor)]

    return once


def _may_hold(value: Any) -> bool:
    return isinstance(value, torch.Tensor) or type(value) is tuple


def _tuple_of(before: tuple[Any, ...], items: list[Any]) -> tuple[Any, ...]:
    return before if all(map(_is_same, items, before)) else tuple(items)


def restore(container: Any, before: Any) -> None:
    """Puts the contents of a container back in place, unless they are the same objects in the same order."""
    if isinstance(container, dict):
        _restore_keys(container, before)
    elif isinstance(container, Named):
        container.write(before)
    elif isinstance(container, CellType):
        _restore_variable(container, before)
    elif len(container) != len(before) or not all(map(_is_same, container, before)):
        container.clear()
        container.update(before) if isinstance(container, set) else container.extend(before)


def _restore_variable(cell: CellType, before: list[Any]) -> None:
    """Gives a variable of a closure its value back, or none where it had none."""
    now = contents_of_cell(cell)
    if now and not before:
        del cell.cell_contents
    elif before and not (now and now[0] is before[0]):
        cell.cell_contents = before[0]


def _take_fakes_out(container: Any, before: Any) -> None:
    """Gives a container that others write too back what it held in place of fake tensors alone."""
    if not isinstance(container, dict):
        known = set(map(id, before))
        if has_fakes([one for one in contents(container) if id(one) not in known]):
            restore(container, before)
        return
    for key, value in list(dict.items(container)):
        if value is not before.get(key) and has_fakes(value):
            _put_back(container, key, before)


def _put_back(container: dict[Any, Any], key: Any, before: dict[Any, Any]) -> None:
    kind: Any = OrderedDict if isinstance(container, OrderedDict) else dict  # frozen configurations forbid their own
    if key in before:
        kind.__setitem__(container, key, before[key])
    else:
        kind.__delitem__(container, key)


def _restore_keys(container: dict[Any, Any], before: dict[Any, Any]) -> None:
    """Changes nothing but what is not the same object, for other threads may read the module now."""
    for key in container.keys() - before.keys():
        _put_back(container, key, before)
    for key, value in before.items():
        if key not in container or dict.__getitem__(container, key) is not value:
            _put_back(container, key, before)
    if isinstance(container, OrderedDict) and list(container) != list(before):  # the order is what a cache forgets by
        for key in before:
            OrderedDict.move_to_end(container, key)


def _is_same(one: Any, other: Any) -> bool:
    return one is other


def _caches(module: nn.Module) -> Iterator[Callable[..., Any]]:
    """The caching functions of the packages that the classes of a module come from, and those of its parts alone."""
    for child in module.modules():
        yield from (one for one in list(vars(child).values()) if isinstance(one, functools._lru_cache_wrapper))
    classes = {cls for child in module.modules() for cls in type(child).__mro__}
    packages = {cls.__module__.partition(".")[0] for cls in classes}.difference(_NO_MODELS)
    for name, library in list(sys.modules.items()):
        if name.partition(".")[0] in packages and library is not None:
            yield from _caches_in(library)


def _caches_in(library: ModuleType) -> Iterator[Callable[..., Any]]:
    for value in list(vars(library).values()):
        yield from _caches_behind(value)
        if isinstance(value, type) and value.__module__ == library.__name__:
            for one in list(vars(value).values()):
                yield from _caches_behind(getattr(one, "__func__", one))  # of a static method, the function


def _caches_behind(function: Any) -> Iterator[Callable[..., Any]]:
    """A function that keeps its answers, or the one that a function calls as a variable of its closure."""
    if isinstance(function, functools._lru_cache_wrapper):
        yield function
    elif isinstance(function, FunctionType):
        for cell in function.__closure__ or ():
            yield from (one for one in contents_of_cell(cell) if isinstance(one, functools._lru_cache_wrapper))


def _clear(caches: list[Callable[..., Any]]) -> None:
    for cache in caches:
        if _holds_tensors(cache):
            cache.cache_clear()  # type: ignore[attr-defined]


def _holds_tensors(cache: Any) -> bool:
    """Whether a tensor is among what a cache answers, or in a container among it."""
    if not cache.cache_info().currsize:
        return False
    found = [one for one in gc.get_referents(cache) if one is not cache.__dict__ and not isinstance(one, _CODE)]
    for _ in range(3):  # a table of answers, an answer, and what is in it
        if any(isinstance(one, torch.Tensor) for one in found):
            return True
        found = gc.get_referents(*(one for one in found if isinstance(one, (dict, list, tuple, set))))
    return any(isinstance(one, torch.Tensor) for one in found)
