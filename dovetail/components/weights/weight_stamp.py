"""Notices weights that somebody else replaced or wrote: other tensors, other memory, or newer data than copies have.

Which of them require gradients is looked at too, for PyTorch chooses kernels by it.
"""

from __future__ import annotations

from torch import nn

from ...runtime.store.seen import Seen
from ...runtime.store.store import Store


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
        for place in now.places:
            for key, tensor in place.items():
                one = None if tensor is None else self._store.known(tensor)
                if tensor is None:
                    continue
                if one is None or not one.is_in(place, key):
                    return True
                is_new = id(tensor) not in before
                was, found = (one.noted if is_new else before[id(tensor)]), data.get(id(tensor))
                if was is None and (is_new or found is not None):  # also a stand-in whose object became a tensor
                    return True
                if found is None or was is None:  # a stand-in
                    continue
                if was[0] != found[0] or (was[1] != found[1] and (one.parts or one.staged)):
                    return True
        return False
