"""Another backend of diffusers' attention for the diffusion models of a pipeline, and the one before given back."""

from __future__ import annotations

import difflib
import weakref
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from ..compiler.errors import UsageError
from ..conventions import libraries

if TYPE_CHECKING:
    from torch import nn

_PACKAGES = {
    "_native_npu": "torch_npu", "_native_xla": "torch_xla", "_flash": "flash_attn_interface", "flash": "flash-attn",
    "_sage": "sageattention", "sage": "sageattention", "xformers": "xformers", "flex": "torch",
}  # fmt: skip
"""The package that a backend comes from, by how its name begins; what ends in `_hub` comes by `kernels`."""

UNCOUNTED = frozenset({"flex", "_native_math"})
"""Backends that hold all scores of a block's attention at once, where nobody compiles them."""


def read_attention(given: object) -> str:
    """The backend that a name means; nothing where none was named.

    Raises UsageError for what is no name of one, and for one whose package is not here; nothing was loaded then.
    """
    if given is None:
        return ""
    if not isinstance(given, str):
        raise UsageError(f"attention is the name of a backend, such as 'flex', and no {type(given).__name__}")
    known, named = libraries.attention_backends(), given.strip().lower()
    there = [name for name in known if not libraries.lacks_attention(name)]
    if named not in known:
        near = difflib.get_close_matches(named, known, 1)
        hint = f"did you mean {near[0]}? These" if near else "these"
        raise UsageError(
            f"attention: diffusers has no backend {given[:40]!r}: {hint} are usable here: {', '.join(there)}"
        )
    lacking = libraries.lacks_attention(named)
    if lacking:
        raise UsageError(
            f"attention: {named} needs the package {_package_of(named)}, which is not here or too old: install it, or "
            f"take one of those that are here: {', '.join(there)} ({lacking})"
        )
    return named


def _package_of(name: str) -> str:
    if name.endswith("_hub"):
        return "kernels"
    return next((package for start, package in _PACKAGES.items() if name.startswith(start)), name)


class AttentionBackend:
    """The backend that the attention of some models takes while it is put, and what each took before.

    Args:
        name: the backend, as `read_attention` gives it.
    """

    def __init__(self, name: str) -> None:
        self.name = name
        self.is_default = name == libraries.default_attention()
        """Whether that is the one that diffusers takes by itself."""
        self._before: list[tuple[Any, bool, Any, Any]] = []
        self._on: list[weakref.ref[nn.Module]] = []

    @property
    def typed(self) -> tuple[str, str]:
        """The option that asks for it, and its value."""
        return "--attention", self.name

    @property
    def option(self) -> str:
        """The same in one text."""
        return " ".join(self.typed)

    @staticmethod
    def able(models: Mapping[str, nn.Module]) -> dict[str, nn.Module]:
        """Those of the models whose attention takes a backend."""
        return {name: one for name, one in models.items() if libraries.attention_processors(one)}

    def is_on(self, model: nn.Module) -> bool:
        """Whether it was put on a model, and not taken off."""
        return any(one() is model for one in self._on)

    def put(self, models: Mapping[str, nn.Module]) -> None:
        """Has the models compute attention by it; raises UsageError where none of them can choose, or one may not."""
        able = self.able(models)
        if not able:
            names = ", ".join(f"{name} ({type(one).__name__})" for name, one in models.items()) or "none"
            raise UsageError(
                f"attention: no diffusion model of this pipeline takes a backend of attention: {names}; leave out "
                f"attention ({self.option})"
            )
        if self.name == "flex":
            from ..runtime.sim import flex  # needs PyTorch, which --help does without

            flex.install()
        for model in able.values():
            processors = libraries.attention_processors(model)
            before = [(one, "_attention_backend" in vars(one), one._attention_backend) for one in processors]
            try:
                libraries.set_attention(model, self.name)
            except (ValueError, RuntimeError, ImportError, AttributeError, OSError) as error:
                raise UsageError(f"attention: {type(model).__name__} does not take {self.name}: {error}") from error
            finally:
                self._on.append(weakref.ref(model))
                self._before += [(one, was, value, one._attention_backend) for one, was, value in before]

    def take_off(self, model: nn.Module | None = None) -> None:
        """Gives each attention, of one model or of all, the backend that it had; what somebody has set since stays."""
        of_model = {id(one) for one in libraries.attention_processors(model)} if model is not None else set()
        self._on = [one for one in self._on if model is not None and one() is not model]
        leaving = [one for one in self._before if model is None or id(one[0]) in of_model]
        self._before = [one for one in self._before if model is not None and id(one[0]) not in of_model]
        for processor, was, value, ours in reversed(leaving):
            if processor._attention_backend is not ours:
                continue
            if was:
                processor._attention_backend = value
            else:
                vars(processor).pop("_attention_backend", None)

    def notes(self) -> list[str]:
        """What a plan says of it, a line each."""
        told = f"attention is computed by {self.name} ({self.option})"
        notes = [] if self.is_default else [f"{told}, which rounds otherwise: last bits of the picture may change"]
        if self.name in UNCOUNTED:
            notes.append(f"{self.name} may hold all scores of a block's attention at once, which no peak here counts")
        return notes
