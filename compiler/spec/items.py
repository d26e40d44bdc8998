"""What every setting of the grammar shares: items, keys, and the way from dicts to text."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Generic, TypeAlias, TypeVar

from ..errors import SpecError
from ..spans import Span

K = TypeVar("K")
T = TypeVar("T")

Given: TypeAlias = "str | int | float | Mapping[Any, Any] | Sequence[Any] | object | None"
"""A setting as Python code gives it: text, a dict of keys and values, one value, or nothing."""


def spec_text(given: Given, joint: str = "&") -> str:
    """The text of a setting given as text, as a dict, as one value or as None; `joint` joins the values of a list."""
    if given is None:
        return ""
    if isinstance(given, Mapping):
        return ",".join(
            f"{'default' if key == '' else key}={_value_text(value, joint)}" for key, value in given.items()
        )
    return _value_text(given, joint)


def _value_text(value: object, joint: str) -> str:
    if value is None or isinstance(value, (bool, bytes, Mapping)):
        raise SpecError(f"a spec cannot hold {value!r} ({type(value).__name__})", repr(value), 0, len(repr(value)))
    if isinstance(value, (list, tuple)):
        return joint.join(_value_text(part, joint) for part in value)
    return str(value)


def read_items(
    text: str, read_key: Callable[[Span], K | None], read_value: Callable[[Span], T]
) -> tuple[T | None, tuple[tuple[K, T], ...]]:
    """The default and the keyed values of `key=value,…`; a bare value or a key read as None sets the default.

    A later item overrides an earlier one of the same key; empty items do not count.
    """
    default: T | None = None
    named: dict[K, T] = {}
    for item in Span.whole(text).split(","):
        if not item.value:
            continue
        before, after = item.partition("=")
        key = None if after is None else read_key(before)
        value = read_value(item if after is None else after)
        if key is None:
            default = value
        else:
            named[key] = value
    return default, tuple(named.items())


def items_text(default: T | None, named: Sequence[tuple[object, T]], value_text: Callable[[T], str]) -> str:
    """The text that `read_items` reads back: the default bare and first, then each key with its value."""
    bare = [] if default is None else [value_text(default)]
    return ",".join(bare + [f"{key}={value_text(value)}" for key, value in named])


@dataclass(frozen=True)
class ByComponent(Generic[T]):
    """A setting that may differ from component to component: by a component's own name, by role, by default."""

    default: T | None = None
    named: tuple[tuple[str, T], ...] = ()

    def get(self, attribute: str, role: str) -> T | None:
        """What is set for a component: its own name wins over its role, its role over the default."""
        named = dict(self.named)
        return named.get(attribute, named.get(role, self.default))

    def unused(self, components: Mapping[str, str]) -> tuple[str, ...]:
        """The keys that name none of these components (attribute name → role)."""
        known = {*components, *components.values()}
        return tuple(key for key, _ in self.named if key not in known)

    def __str__(self) -> str:
        """The text form, which the setting's parser reads back."""
        return items_text(self.default, self.named, self._value_text)

    def _value_text(self, value: T) -> str:
        return str(value)
