"""Which of some parts stay on a device: subsets of the largest sum that fits beside the slots for the others."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from ...compiler.spec.residency import Residency

Choice = tuple[int, int, tuple[Residency, ...]]
"""Bytes resident, bytes streamed from the host's memory, and where each part rests."""


@dataclass(frozen=True, slots=True)
class Item:
    """A part: its bytes, and those of the largest block in it, which a slot must hold."""

    nbytes: int
    largest: int


@dataclass(frozen=True)
class Subsets:
    """Parts of a range, the bytes in which sums are counted, and how many slots streaming takes."""

    items: Sequence[Item]
    unit: int = 1
    slots: int = 2

    def choices(self, room: int, places: Sequence[Residency]) -> Iterator[Choice]:
        """For every size of a slot the best ways to fill some bytes, with parts streamed from some places.

        From one place the way of the most resident bytes; from both one for each number of bytes from the host.
        """
        for slot in sorted({item.largest for item in self.items}):
            kept = [item.largest > slot for item in self.items]
            free = room - self.slots * slot - sum(i.nbytes for i, stays in zip(self.items, kept, strict=True) if stays)
            if free < 0:
                continue
            sizes = [0 if stays else -(-item.nbytes // self.unit) for item, stays in zip(self.items, kept, strict=True)]
            ways = self._one(sizes, free, places[0]) if len(places) == 1 else self._both(sizes, free)
            for way in ways:
                yield self._counted([Residency.DEVICE if k else r for k, r in zip(kept, way, strict=True)])

    def _counted(self, way: Sequence[Residency]) -> Choice:
        def nbytes(place: Residency) -> int:
            return sum(item.nbytes for item, where in zip(self.items, way, strict=True) if where is place)

        return nbytes(Residency.DEVICE), nbytes(Residency.HOST), tuple(way)

    def _one(self, sizes: Sequence[int], free: int, place: Residency) -> Iterator[tuple[Residency, ...]]:
        """The subset of the largest sum: bit k of a number says whether some of the parts so far add up to k."""
        most = free // self.unit
        sums = [1]
        for size in sizes:
            sums.append(sums[-1] | (sums[-1] << size) & ((1 << (most + 1)) - 1))
        left = sums[-1].bit_length() - 1
        way = [place] * len(sizes)
        for index in reversed(range(len(sizes))):
            if not sums[index] >> left & 1:
                way[index], left = Residency.DEVICE, left - sizes[index]
        yield tuple(way)

    def _both(self, sizes: Sequence[int], free: int) -> Iterator[tuple[Residency, ...]]:
        """For every sum that may come from the host, one way of the largest resident sum."""
        most = free // self.unit
        known: dict[tuple[int, int], tuple[Residency, ...]] = {(0, 0): ()}
        for size in sizes:
            found: dict[tuple[int, int], tuple[Residency, ...]] = {}
            for (resident, host), way in known.items():
                if resident + size <= most:
                    found.setdefault((resident + size, host), (*way, Residency.DEVICE))
                found.setdefault((resident, host + size), (*way, Residency.HOST))
                found.setdefault((resident, host), (*way, Residency.DISK))
            known = found
        best: dict[int, int] = {}
        for resident, host in known:
            best[host] = max(best.get(host, 0), resident)
        yield from (known[resident, host] for host, resident in best.items())
