"""What was asked to be put on the diffusion models of a pipeline, put there and taken off again."""

from __future__ import annotations

import logging
from collections.abc import Collection, Mapping
from typing import TYPE_CHECKING

from ..compiler.errors import UsageError
from .attention import UNCOUNTED, AttentionBackend, read_attention
from .step_cache import CachedModels, read_cache

if TYPE_CHECKING:
    from torch import nn

logger = logging.getLogger(__name__)


def check_addons(attention: object, cache: object) -> None:
    """Raises UsageError for a backend or a cache that there is none of, or whose package is not here."""
    read_cache(cache)
    read_attention(attention)


def of_another(option: str, pipeline: str) -> UsageError:
    """What says that the models an option is for are those of another compiled pipeline."""
    return UsageError(
        f"{option}: the models of this {pipeline} are those of another compiled pipeline: give {option} to that one, "
        "which came first, or leave it out"
    )


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

    def put(self, models: Mapping[str, nn.Module], borrowed: Collection[str], pipeline: str) -> None:
        """Puts it on those of some diffusion models that are a pipeline's own.

        Args:
            models: the diffusion models of the pipeline by name.
            borrowed: the names of those that another pipeline has placed.
            pipeline: what the pipeline is called.

        Raises UsageError where they do not take it, or only those that another pipeline has placed would.
        """
        own = {name: one for name, one in models.items() if name not in borrowed}
        if self.attention is not None:
            if not self.attention.able(own) and self.attention.able(models):
                raise of_another("attention", pipeline)
            self.attention.put(own)
        if self.cache is not None:
            if not self.cache.able(own) and self.cache.able(models):
                raise of_another("cache", pipeline)
            self.cache.put(own)

    def join(self, name: str, model: nn.Module) -> None:
        """Puts it on a diffusion model that takes the place of another; what that does not take is said."""
        for one in (self.attention, self.cache):
            if one is None:
                continue
            try:
                one.put({name: model})
            except UsageError as error:
                one.take_off(model)
                logger.warning("the new %s goes without %s: %s", name, one.option, error)

    def take_off(self, model: nn.Module | None = None) -> None:
        """Takes all of it off again, of one model or of all."""
        for one in (self.cache, self.attention):
            if one is not None:
                one.take_off(model)

    def settings(self, models: Collection[nn.Module]) -> dict[str, str]:
        """The options that ask for what is on some of the models now."""
        put = (one.typed for one in (self.attention, self.cache) if one and any(map(one.is_on, models)))
        return dict(put)

    def parting(self, model: nn.Module) -> str:
        """The options that have a model run by its parts, for no program can hold what they put on it."""
        attention = self.attention if self.attention is not None and self.attention.name in UNCOUNTED else None
        return " and ".join(one.option for one in (attention, self.cache) if one is not None and one.is_on(model))

    def notes(self, models: Collection[nn.Module]) -> list[str]:
        """What a plan says of what is on some of the models now, a line each."""
        put = (one for one in (self.attention, self.cache) if one is not None and any(map(one.is_on, models)))
        return [note for one in put for note in one.notes()]
