"""Notices weights that somebody else replaced or wrote: other tensors, other memory, or newer data than copies have.

Which of them require gradients is looked at too, for PyTorch chooses kernels by it.
"""

from __future__ import annotations

import contextlib

from torch import nn

from ...compiler.errors import WeightError
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
            self._keep(now)
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
        with self._store.lock, contextlib.suppress(WeightError):
            now = Seen.within(seen.modules, seen.places)
            if not self._is_foreign(seen, now):
                self._keep(now)

    def _keep(self, now: Seen) -> None:
        self._seen = now
        for tensor in now.tensors:
            one = self._store.known(tensor)
            if one is not None and one.shown is not None and tensor is one.shown:
                one.tensor.requires_grad_(one.shown.requires_grad)

    def _is_foreign(self, seen: Seen, now: Seen) -> bool:
        before = dict(zip(map(id, seen.tensors), seen.data(), strict=True))
        known = self._store.known
        slots = ((place, key) for place in now.places for key, value in place.items() if value is not None)
        for slot, tensor, (data, version) in zip(slots, now.tensors, now.data(), strict=True):
            one = known(tensor)
            if one is None or not one.is_in(*slot):
                return True
            was = before.get(id(tensor)) or one.noted
            if was is None:
                continue
            if was[1] != version and tensor.is_meta:
                raise WeightError(
                    f"weight {one.name} was written to, but its data is in no tensor of the module: it is split or "
                    "rests elsewhere: call load_state_dict of the whole component, or undo() first"
                )
            if was[0] != data or (was[1] != version and (one.parts or one.staged)):
                return True
        return False
