"""The weights of a program's adapters, which are exchanged between calls, and belong to whoever loaded them."""

from __future__ import annotations

from collections.abc import Mapping

import torch

from ...compiler.ir.program import Program
from ...compiler.ir.weight import Weight
from .staging import Staging
from .store import Store
from .stored_weight import StoredWeight


class AdapterWeights:
    """Tensors by the names of weights; they stay where they are, and devices get copies for as long as they are needed.

    Args:
        store: brings them.
        program: the program that reads them.
        staging: tells of the end of each phase, for which copies may be kept.
    """

    def __init__(self, store: Store, program: Program, staging: Staging) -> None:
        self._store = store
        self._program = program
        self._given: Mapping[str, torch.Tensor] = {}
        self._held: dict[str, StoredWeight] = {}
        staging.tell(self)

    def exchange(self, adapters: Mapping[str, torch.Tensor]) -> frozenset[str]:
        """Takes others; returns the names of those that are other tensors than before, which are fetched again."""
        if adapters is self._given:
            return frozenset()
        before, self._given = self._held, adapters
        same = {name for name, tensor in adapters.items() if name in before and before[name].tensor is tensor}
        for name in before.keys() - same:
            before[name].leave_slots()
        self._held = {name: before[name] if name in same else self._new(name) for name in adapters}
        return frozenset(adapters.keys() - same)

    def _new(self, name: str) -> StoredWeight:
        return StoredWeight(name, self._given[name], owner=self._program.name, borrowed=True)

    def known(self, weight: Weight) -> StoredWeight | None:
        """What is given for a weight, if that is an adapter's."""
        return self._held.get(weight.whole) if weight.kind == "adapter" else None

    def on(self, one: StoredWeight, weight: Weight, device: torch.device) -> torch.Tensor:
        """A weight on a device; a number stays where it is."""
        one.check(weight)
        return one.tensor if weight.is_number else self._store.fetch(one, weight, device)

    def end_phase(self) -> None:
        """Lets go of what was kept for a phase."""
        for one in self._held.values():
            one.leave_slots()
