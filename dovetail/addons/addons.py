"""What was asked to be put on the diffusion models of a pipeline, put there and taken off again."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from .attention import AttentionBackend, read_attention
from .step_cache import CachedModels, read_cache

if TYPE_CHECKING:
    from torch import nn


def check_addons(attention: object, cache: object) -> None:
    """Raises UsageError for a backend or a cache that there is none of, or whose package is not here."""
    read_cache(cache)
    read_attention(attention)


class Addons:
    """What is put on the diffusion models of one pipeline.

    Args:
        attention: the backend of attention, or None for the one that is there.
        cache: a cache of steps, as it is typed, or None.

    Raises UsageError for what is none.
    """

    def __init__(self, attention: str | None = None, cache: str | None = None) -> None:
        kept, backend = read_cache(cache), read_attention(attention)
        self.attention = AttentionBackend(backend) if backend else None
        self.cache = CachedModels(kept) if kept else None

    def put(self, models: Mapping[str, nn.Module], roles: Mapping[str, str]) -> None:
        """Puts it on those of the models whose role is diffusion; raises UsageError where they do not take it."""
        found = {name: one for name, one in models.items() if roles[name] == "diffusion"}
        for one in (self.attention, self.cache):
            if one is not None:
                one.put(found)

    def begin(self) -> None:
        """Has a call begin without what an earlier one has left that did not reach its end."""
        if self.cache is not None:
            self.cache.reset()

    def take_off(self) -> None:
        """Takes all of it off again."""
        for one in (self.cache, self.attention):
            if one is not None:
                one.take_off()

    @property
    def settings(self) -> dict[str, str]:
        """The options that ask for the same."""
        attention = {"--attention": self.attention.name} if self.attention is not None else {}
        return attention | ({"--cache": str(self.cache.cache)} if self.cache is not None else {})

    def notes(self) -> list[str]:
        """What a plan says of it, a line each."""
        return [note for one in (self.attention, self.cache) if one is not None for note in one.notes()]
