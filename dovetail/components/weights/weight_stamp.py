"""Notices weights that somebody else replaced or wrote: other tensors, other memory, or newer data than copies have.

Which of them require gradients is looked at too, for PyTorch chooses kernels by it.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, TypeAlias

import torch
from torch import nn

from ...runtime.store.seen import Seen
from ...runtime.store.store import Store
from ...runtime.store.stored_weight import Data, StoredWeight

Known: TypeAlias = tuple[Data, int] | torch.Tensor | None
"""The data of a tensor and how often it had been written; of a stand-in its form."""


class WeightStamp:
    """Compares the weights of some modules with what they were at the last look."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._seen: Seen | None = None
        self._wanting: list[bool] | None = None

    def is_changed(self, root: nn.Module, modules: list[nn.Module]) -> bool:
        """Whether somebody else changed a weight, so that copies of it are of no use; what we moved is no change."""
        seen = self._seen
        if seen is not None and seen.modules is modules and seen.is_current() and seen.wants_the_same():
            return False
        with self._store.lock:
            now = Seen.of(modules, root)
            foreign = seen is not None and self._is_foreign(seen, now)
            self._seen = now
            return foreign

    def has_turned(self) -> bool:
        """Whether other weights require gradients than at the last time that this was asked."""
        now = self._seen.wanting if self._seen is not None else None
        before, self._wanting = self._wanting, now
        return before is not now and before is not None and before != now

    def renew(self) -> None:
        """Looks again after weights were moved by us, so that those that left their device are not kept alive here.

        What somebody else changed meanwhile is told at the next look.
        """
        seen = self._seen
        if seen is None:
            return
        with self._store.lock:
            now = Seen.within(seen.modules, seen.places)
            if not self._is_foreign(seen, now):
                self._seen = now

    def _is_foreign(self, seen: Seen, now: Seen) -> bool:
        before, data = seen.data(), now.data()
        held = [(place, key, tensor) for place in now.places for key, tensor in place.items() if tensor is not None]
        others = [self._is_others(*one, before, data) for one in held]  # all of them, for each is noted
        return any(others) or now.lacks(seen)

    def _is_others(
        self,
        place: dict[str, Any],
        key: str,
        tensor: torch.Tensor,
        before: Mapping[int, Known],
        data: Mapping[int, Known],
    ) -> bool:
        """Whether a module holds data that is neither what it had at the last look nor what we put there since."""
        one = self._store.known(tensor)
        if one is None or not one.is_in(place, key):
            return True
        found, was = data.get(id(tensor)), before.get(id(tensor))
        if not isinstance(found, tuple):  # a stand-in
            return found is not was and one.noted is None
        if any(isinstance(known, tuple) and _is_the_same(one, known, found) for known in (was, one.noted)):
            return False
        one.noted = None
        return True


def _is_the_same(one: StoredWeight, known: tuple[Data, int], found: tuple[Data, int]) -> bool:
    """Whether data is what is known, and was not written while there are copies of it."""
    return known[0] == found[0] and (known[1] == found[1] or not (one.parts or one.staged))
