"""Numbers for objects, so that descriptions of what somebody holds compare by identity and keep nothing alive."""

from __future__ import annotations

import functools
import itertools
import weakref
from collections.abc import Hashable
from typing import Any

_numbers: dict[int, tuple[Any, int]] = {}
_next = itertools.count()


def serial(value: Any) -> Hashable:
    """A number of an object that no other object gets; what cannot be referred to weakly stands for itself."""
    known = _numbers.get(id(value))
    if known is not None and known[0]() is value:
        return known[1]
    try:
        reference = weakref.ref(value, functools.partial(_forget, id(value)))
    except TypeError:
        return _ByIdentity(value)
    _numbers[id(value)] = reference, next(_next)
    return _numbers[id(value)][1]


def _forget(key: int, reference: Any) -> None:
    if key in _numbers and _numbers[key][0] is reference:
        del _numbers[key]


class _ByIdentity:
    """An object that is equal to itself alone, and is kept."""

    __slots__ = ("_value",)

    def __init__(self, value: Any) -> None:
        self._value = value

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _ByIdentity) and other._value is self._value

    def __hash__(self) -> int:
        return id(self._value)
