"""Fills slots of an accelerator with the weights of a load; what lies side by side at both ends goes in one copy.

Where weights go in a slot is worked out once for each slot. Where they come from is looked at in every call, for
somebody may have replaced or written them.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

import torch

from ...compiler.ir.staging import offsets
from ...compiler.ir.weight import Weight
from ..devices.accelerator import accelerator_of
from ..devices.transfers import land
from .at_rest import place_in
from .origin import HOST
from .store import Store
from .stored_weight import StoredWeight

Places = dict[int, tuple[tuple[torch.Size, tuple[int, ...]], torch.Tensor]]
"""The memory for weights in a slot, by their number in a load, with the form at rest that it was made for."""


class _Part(NamedTuple):
    """A weight that is to be copied from host memory, and the address of the byte that would go to the slot's first."""

    source: torch.Tensor
    place: torch.Tensor
    start: int
    origin: int | None


class Landing:
    """The weights of one load, as they land in slots.

    Args:
        store: brings them.
        weights: the weights, in order.
    """

    def __init__(self, store: Store, weights: Sequence[Weight]) -> None:
        self._store = store
        self.weights = weights
        self._starts = offsets(weights)[0]

    def fill(
        self,
        found: Sequence[tuple[StoredWeight, Weight]],
        memory: torch.Tensor,
        places: Places,
        landed: Callable[[StoredWeight, Weight, torch.Tensor], torch.Tensor],
    ) -> list[torch.Tensor]:
        """Fills the memory of a slot, on the current stream, and returns the weights there.

        ``landed`` brings one that does not come from host memory.
        """
        tensors: list[torch.Tensor] = []
        waiting: list[_Part] = []
        for number, (one, weight) in enumerate(found):
            place = self._place(places, number, one, weight, memory)
            source = self._source(one, weight, memory.device)
            if source is None:
                _copy(waiting, memory)  # in order: what follows may lie in what a number does not fill
                tensors.append(landed(one, weight, place))
                continue
            part = _Part(source, place, self._starts[number], _origin(source, place, self._starts[number]))
            if waiting and not _are_joined(waiting[-1], part):
                _copy(waiting, memory)
            waiting.append(part)
            tensors.append(place)
        _copy(waiting, memory)
        return tensors

    def _place(
        self, places: Places, number: int, one: StoredWeight, weight: Weight, memory: torch.Tensor
    ) -> torch.Tensor:
        form = one.tensor.shape, one.tensor.stride()
        known = places.get(number)
        if known is None or known[0] != form:
            known = places[number] = form, place_in(memory, self._starts[number], one, weight)
        return known[1]

    def _source(self, one: StoredWeight, weight: Weight, device: torch.device) -> torch.Tensor | None:
        """What is copied of a weight, from host memory; None where it is not there, or is a number."""
        if weight.is_number or (one.borrowed and one.is_on(device)):
            return None
        resting = self._store.at_rest(one, weight, device)
        return None if resting is None or resting.device != HOST else weight.of(resting)


def _origin(source: torch.Tensor, place: torch.Tensor, start: int) -> int | None:
    """Where the slot's first byte would come from; None for what is not copied byte by byte."""
    alike = (source.dtype, source.shape, source.stride()) == (place.dtype, place.shape, place.stride())
    return source.data_ptr() - start if alike and type(source) is torch.Tensor and source.nbytes else None


def _are_joined(one: _Part, other: _Part) -> bool:
    """Whether one lies right behind another, in the slot and where they come from."""
    return one.origin is not None and one.origin == other.origin and one.start + one.place.nbytes == other.start


def _copy(parts: list[_Part], memory: torch.Tensor) -> None:
    """Copies what lies side by side, and forgets it."""
    start, stop = (parts[0].start, parts[-1].start + parts[-1].place.nbytes) if parts else (0, 0)
    there, is_one = accelerator_of(memory.device), len(parts) < 2
    whole = None if is_one else there.stretch(parts[0].source.data_ptr(), stop - start)
    if whole is None:
        for part in parts:
            land(part.source, part.place)
    else:
        land(whole, memory[start:stop])
    parts.clear()
