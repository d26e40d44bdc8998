"""The code of somebody's own that a call of a pipeline runs around its components, and what that may change.

A wrapper may lie over the forward of a component, over a method of the pipeline, its scheduler or a processor, or in
the place of a method of their classes. It runs in a dry run too, and may count there in its closure, in the object that
it lies on, in any other of the pipeline's, or in their classes.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from types import FunctionType
from typing import Any

from torch import nn

from ..cache.code import home_of, is_own, module_of
from ..cache.written import attributes_in, code_of, written_by
from ..compiler.frontend.outside import is_ours
from ..compiler.frontend.rollback import containers_in
from ..components.as_before import ContainersAsBefore

_WRAPPERS = 8
"""So many functions that wrap one another are looked through."""


def own_code(pipe: Any, cls: type[Any], given: Iterable[Any]) -> list[Any]:
    """Classes and functions of somebody's own that such a call may run, other than within its components.

    ``given`` are the arguments of the call.
    """
    values = [one for one in vars(pipe).values() if not is_ours(one)]
    found = [cls, *_functions_over([cls, *map(type, values)]), *code_of(vars(pipe).values()), *code_of(given)]
    for value in values:
        found += [type(value), *functions_on(value)]
    modules = dict.fromkeys(part for value in values if isinstance(value, nn.Module) for part in value.modules())
    found += _functions_over(map(type, modules))
    found += [function for part in modules for function in functions_on(part)]
    return [one for one in dict.fromkeys(found) if _is_somebodys(one)]


def functions_on(value: Any) -> list[Any]:
    """The functions of somebody's own that stand in attributes of an object, as in place of its methods."""
    return [one for one in code_of(filter(callable, list(attributes_in(value).values()))) if _is_somebodys(one)]


def runs_own_code(value: Any) -> bool:
    """Whether a call of an object runs code of somebody's own."""
    return _is_somebodys(type(value)) or _is_somebodys(type(value).__call__) or bool(functions_on(value))


def kept_around(pipe: Any, code: Sequence[Any]) -> ContainersAsBefore:
    """What a pipeline, its objects on which functions of somebody's own lie, and such code hold now.

    Not what other objects hold: other threads may write to them.
    """
    values = (one for one in vars(pipe).values() if not isinstance(one, nn.Module) and functions_on(one))
    return ContainersAsBefore([vars(pipe), *containers_in(map(attributes_in, values)), *written_by(code)])


def kept_of(values: Sequence[Any]) -> ContainersAsBefore:
    """What objects of somebody's own hold now, and what their code writes to."""
    code = [one for value in values for one in (type(value), *functions_on(value))]
    return ContainersAsBefore([*map(attributes_in, values), *written_by(code)])


def _functions_over(classes: Iterable[type]) -> list[FunctionType]:
    """The functions of somebody's own in classes of libraries."""
    bases = dict.fromkeys(base for cls in dict.fromkeys(classes) for base in cls.__mro__)
    theirs = [base for base in bases if not is_own(module_of(base))]
    return [one for base in theirs for value in list(vars(base).values()) for one in _functions_of(value)]


def _functions_of(value: Any) -> Iterator[FunctionType]:
    made = (value.fget, value.fset) if isinstance(value, property) else (getattr(value, "__func__", value),)
    yield from (one for one in made if isinstance(one, FunctionType) and _is_somebodys(one))


def _is_somebodys(value: Any) -> bool:
    """Whether a class or function is somebody's own, or wraps one that is."""
    if isinstance(value, type):
        return is_own(module_of(value))
    for _ in range(_WRAPPERS):
        if not isinstance(value, FunctionType):
            return False
        if is_own(home_of(value)):
            return True
        value = vars(value).get("__wrapped__")
    return False
