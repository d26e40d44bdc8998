"""Pinned host memory for weights: in slabs, within a budget, and pageable past it.

PyTorch rounds each block of pinned memory up to a power of two, so weights pinned one by one take half as much again.
They are placed in slabs of such a size instead. A slab goes with the last tensor in it, to PyTorch's cache, from which
the next one is taken. Past the budget, or where the system pins no more, there is none, which is said once.
"""

from __future__ import annotations

import logging
import threading
from bisect import bisect_right
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import torch
from torch.multiprocessing.reductions import StorageWeakRef

from ...compiler.devices.probe import probe_host
from ...compiler.units import format_bytes
from .fork import renew_after_fork

logger = logging.getLogger(__name__)

SLAB = 256 * 2**20
_SMALLEST = 2**20
_ALIGNMENT = 256
Pin = Callable[[int], torch.Tensor]
"""Makes so many bytes of pinned memory; raises RuntimeError where the system does not."""


class _Slab:
    """Pinned bytes that are alive as long as a tensor lies in them, and how many are given out."""

    def __init__(self, memory: torch.Tensor) -> None:
        self._reference = StorageWeakRef(memory.untyped_storage())  # which keeps the address from being used again
        self.start = memory.data_ptr()
        self.size = memory.numel()
        self.taken = 0

    @property
    def is_gone(self) -> bool:
        """Whether no tensor lies in it any more."""
        return bool(self._reference.expired())

    def take(self, count: int) -> torch.Tensor | None:
        """The next bytes of it, or None when it is full or gone.

        They are a storage of their own: what a user does to the whole storage of a weight must reach no other one.
        """
        if self.taken + count > self.size or (whole := self.part(self.taken, torch.uint8, (count,), (1,))) is None:
            return None
        self.taken = min(self.size, -(-(self.taken + count) // _ALIGNMENT) * _ALIGNMENT)
        return torch.from_numpy(whole.numpy()) if count else whole

    def has(self, address: int, count: int) -> bool:
        """Whether so many bytes from an address on lie in it."""
        return self.start <= address and address + count <= self.start + self.size and not self.is_gone

    def part(self, start: int, dtype: torch.dtype, size: Sequence[int], stride: Sequence[int]) -> torch.Tensor | None:
        """A tensor from some byte of it on, whose storage is all of it; None when it is gone."""
        storage: Any = torch.UntypedStorage._new_with_weak_ptr(self._reference.cdata)
        if storage is None:
            return None
        return torch.empty(0, dtype=dtype).set_(storage, start // dtype.itemsize, size, stride)

    def same(self, tensor: torch.Tensor) -> torch.Tensor | None:
        """A tensor in it over the storage that PyTorch pinned."""
        return self.part(_address(tensor) - self.start, tensor.dtype, tensor.size(), tensor.stride())


class PinnedMemory:
    """Gives out pinned host memory for one kind of device.

    Args:
        pin: makes pinned memory.
        room: how many bytes more may be pinned when so many are; by default what is free, less an eighth of all.
    """

    def __init__(self, pin: Pin, room: Callable[[int], int] | None = None) -> None:
        self._pin = pin
        self._room = room or _room
        self._told = False
        self._latest: list[_Slab] = []
        self._known: tuple[list[int], list[_Slab]] = [], []  # where they start, in order; replaced at once
        self.renew()
        renew_after_fork(self)

    def renew(self) -> None:
        """Makes its lock anew, in a process that was forked."""
        self._lock = threading.Lock()

    @property
    def nbytes(self) -> int:
        """How much is pinned now."""
        return sum(slab.size for slab in self._slabs if not slab.is_gone)

    def bytes(self, count: int) -> torch.Tensor | None:
        """So many bytes of pinned memory, or None where there is no room for them.

        They lie right behind what was given out last, as far as they fit there, so that both may go in one copy.
        """
        with self._lock:
            if any(slab.is_gone for slab in self._slabs):
                self._know(slab for slab in self._slabs if not slab.is_gone)
            for slab in [*self._latest, *self._slabs]:
                if (taken := slab.take(count)) is not None:
                    return taken
            return self._new_slab(count)

    def holds(self, tensor: torch.Tensor) -> bool:
        """Whether a tensor lies in this memory."""
        return self._slab_of(_address(tensor), min(1, tensor.nbytes)) is not None

    def as_pinned(self, tensor: torch.Tensor) -> torch.Tensor:
        """The same tensor over the storage that PyTorch pinned, if it lies in this memory.

        PyTorch notes which copies still read a storage that it pinned, before it gives that to somebody else.
        """
        slab = self._slab_of(_address(tensor), min(1, tensor.nbytes))
        same = None if slab is None else slab.same(tensor)
        return tensor if same is None else same

    def stretch(self, address: int, count: int) -> torch.Tensor | None:
        """So many bytes from an address on over the storage that PyTorch pinned, if all of them lie in one slab."""
        slab = self._slab_of(address, count)
        return None if slab is None else slab.part(address - slab.start, torch.uint8, (count,), (1,))

    def _slab_of(self, address: int, count: int) -> _Slab | None:
        """The slab in which so many bytes from an address on lie; asked for at each copy of a weight."""
        starts, slabs = self._known
        index = bisect_right(starts, address) - 1
        return slabs[index] if index >= 0 and slabs[index].has(address, count) else None

    @property
    def _slabs(self) -> list[_Slab]:
        return self._known[1]

    def _know(self, slabs: Iterable[_Slab]) -> None:
        found = sorted(slabs, key=lambda slab: slab.start)
        self._known = [slab.start for slab in found], found

    def _new_slab(self, count: int) -> torch.Tensor | None:
        """The first bytes of a slab: as large as all before it, so that little needs little, up to the usual size."""
        size = max(_power_of_two(count), min(SLAB, max(_SMALLEST, _power_of_two(self.nbytes))))
        room = self._room(self.nbytes)
        if size > room:
            size = _power_of_two(count)
        if size > room:
            self._tell(count, f"{format_bytes(self.nbytes)} are, and {format_bytes(max(0, room))} more may be")
            return None
        try:
            memory = self._pin(size)
        except RuntimeError as error:
            self._tell(count, str(error).partition("\n")[0])
            return None
        slab = _Slab(memory)
        self._know([*self._slabs, slab])
        self._latest = [slab]
        return slab.take(count)

    def _tell(self, count: int, why: str) -> None:
        if not self._told:
            self._told = True
            logger.warning(
                "%s of weights rest in memory that is not pinned, and so do those after it: %s: copies from there to a "
                "device are staged, which takes up to twice as long: let fewer weights rest in host memory "
                "(params_backend)",
                format_bytes(count), why,
            )  # fmt: skip


def _address(tensor: torch.Tensor) -> int:
    """Where a tensor begins, also one without elements, for which PyTorch says 0."""
    if address := tensor.data_ptr():
        return address
    return int(tensor.untyped_storage().data_ptr()) + int(tensor.storage_offset()) * tensor.itemsize


def _power_of_two(count: int) -> int:
    return 1 << max(count - 1, 0).bit_length()


def _room(pinned: int) -> int:
    """What may be pinned besides: what is free, and of all what is not, less an eighth of all for everything else."""
    total, free = probe_host()
    return min(total - pinned, free) - total // 8
