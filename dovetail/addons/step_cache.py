"""Caches of diffusers, by which steps reuse what earlier ones computed: read, put on diffusion models, taken off.

How much such a cache skips depends on numbers, or on the steps. A plan has all of it computed (``foreseen.py``).
"""

from __future__ import annotations

import difflib
import math
import weakref
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from ..compiler.errors import UsageError
from ..conventions import libraries

if TYPE_CHECKING:
    from torch import nn


@dataclass(frozen=True)
class _Kind:
    """A cache: what its number means, its default and the least that makes sense, and diffusers' configuration."""

    means: str
    default: float
    least: float
    is_whole: bool
    configured: Callable[[float], Any]


KINDS: Mapping[str, _Kind] = {
    "first_block": _Kind("a threshold", 0.05, 0.0, False, libraries.first_block_cache),
    "taylorseer": _Kind("an interval of steps", 5, 2, True, libraries.taylorseer_cache),
}


@dataclass(frozen=True)
class StepCache:
    """A cache that was asked for: its kind and its number. ``str`` spells it as it is typed."""

    kind: str
    value: float

    def __str__(self) -> str:
        return f"{self.kind}:{int(self.value) if self.value.is_integer() else self.value!r}"


def read_cache(given: object) -> StepCache | None:
    """The cache that a text asks for, ``"first_block:0.12"`` or ``"taylorseer:5"``; None where there is none.

    >>> str(read_cache("first_block:0.12")), str(read_cache("taylorseer"))
    ('first_block:0.12', 'taylorseer:5')

    Raises UsageError for an unknown kind, and for a number that makes no sense for it.
    """
    if given is None:
        return None
    if not isinstance(given, str):
        raise UsageError(f"cache is a text such as 'first_block:0.12', and no {type(given).__name__}")
    name, colon, number = given.strip().partition(":")
    kind = KINDS.get(name)
    if kind is None:
        near = difflib.get_close_matches(name, KINDS, 1)
        hint = f"did you mean {near[0]}? There are" if near else "there are"
        raise UsageError(f"cache: none is called {name[:40]!r}: {hint} {', '.join(KINDS)}")
    if not colon:
        return StepCache(name, float(kind.default))
    try:
        value = float(number)
    except ValueError:
        value = math.nan
    if not math.isfinite(value) or value < kind.least or (kind.is_whole and not value.is_integer()):
        what = f"a whole number from {kind.least:g} on" if kind.is_whole else f"a number from {kind.least:g} on"
        raise UsageError(
            f"cache: {name} takes {kind.means}, {what}, and not {number[:40]!r}: {name}:{kind.default:g} is the default"
        )
    return StepCache(name, value)


class CachedModels:
    """Diffusion models on which a cache is put, until it is taken off.

    Args:
        cache: the cache, as `read_cache` gives it.
    """

    def __init__(self, cache: StepCache) -> None:
        self.cache = cache
        self.skippable: dict[str, tuple[str, ...]] = {}
        """The paths of the parts that may be skipped, by the name of their model."""
        self._on: list[tuple[weakref.ref[nn.Module], Any]] = []

    @property
    def typed(self) -> tuple[str, str]:
        """The option that asks for it, and its value."""
        return "--cache", str(self.cache)

    @property
    def option(self) -> str:
        """The same in one text."""
        return " ".join(self.typed)

    @staticmethod
    def able(models: Mapping[str, nn.Module]) -> dict[str, nn.Module]:
        """Those of the models that take a cache of diffusers."""
        return {name: one for name, one in models.items() if hasattr(one, "enable_cache")}

    def is_on(self, model: nn.Module) -> bool:
        """Whether this one is on a model, and nobody has put another one there or taken it off meanwhile."""
        return any(one() is model and libraries.cache_of(model) is config for one, config in self._on)

    def put(self, models: Mapping[str, nn.Module]) -> None:
        """Puts it on the models; raises UsageError where none takes it, one has a cache, or its blocks are unknown."""
        able = self.able(models)
        if not able:
            names = ", ".join(f"{name} ({type(one).__name__})" for name, one in models.items()) or "none"
            raise UsageError(
                f"cache: no diffusion model of this pipeline takes a cache of diffusers: {names}; leave out cache "
                f"({self.option})"
            )
        for name, model in able.items():
            if model.is_cache_enabled:
                raise UsageError(
                    f"cache: {name} has a cache already ({type(libraries.cache_of(model)).__name__}): call its "
                    f"disable_cache() first, or leave out cache ({self.option})"
                )
            self._put_on(name, model)

    def _put_on(self, name: str, model: nn.Module) -> None:
        config = KINDS[self.cache.kind].configured(self.cache.value)
        try:
            libraries.enable_cache(model, config)
        except (ValueError, KeyError, IndexError, AttributeError, TypeError) as error:
            why = str(error).strip("'\"") or type(error).__name__
            raise UsageError(
                f"cache: {self.cache.kind} is not for {name} ({type(model).__name__}): {why}; leave out cache "
                f"({self.option})"
            ) from error
        self._on.append((weakref.ref(model), config))
        self.skippable[name] = tuple(libraries.cached_parts(model))
        if not self.skippable[name]:
            raise UsageError(
                f"cache: {self.cache.kind} finds no part of {name} ({type(model).__name__}) by its name; leave out "
                f"cache ({self.option}), or take another one: {', '.join(KINDS)}"
            )
        from .foreseen import foresee  # needs diffusers, which is there by now

        for hook in libraries.hooks_of_cache(model):
            foresee(hook, name)

    def take_off(self, model: nn.Module | None = None) -> None:
        """Takes it off one model, or all, again; a cache that somebody has put there meanwhile stays."""
        for one, config in [(one, config) for one, config in self._on if model is None or one() is model]:
            self._on.remove((one, config))
            there = one()
            if there is not None and libraries.cache_of(there) is config:
                libraries.disable_cache(there)

    def notes(self) -> list[str]:
        """What a plan says of it, a line each."""
        return [f"the cache {self.cache} ({self.option}) reuses results of earlier steps: the picture may change"]
