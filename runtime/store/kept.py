"""Slots that are filled once: weights that stay on a device until a phase ends, as a load of a plan says.

The first call that finds a slot empty fills it, on the lane of its device; others find it filled, or wait for the same
filling. A slot is empty again when the phase has ended, when another program of the component has come that does not
keep what is in it, or when somebody changed a weight.
"""

from __future__ import annotations

import threading
import weakref
from collections.abc import Callable
from typing import TYPE_CHECKING

import torch

from ...compiler.devices.device import Device
from ..devices.accelerator import Accelerator, Stream
from ..devices.fork import ForkSafeLock, renew_after_fork
from .staging import Filling

if TYPE_CHECKING:
    from .stored_weight import PartKey, StoredWeight

Place = tuple[Device, int]
"""A slot: its device and its number there."""


class KeptLoad(Filling):
    """The weights in a slot that is filled once, or on their way there.

    Args:
        there: the device.
        what: its name, for whoever records.
        slots: the slots of the program, which know this until it counts as empty.
        place: the one of them that it fills.
    """

    def __init__(self, there: Accelerator, what: str, slots: KeptSlots, place: Place) -> None:
        super().__init__(there, what)
        self._slots, self._place = weakref.ref(slots), place
        self._readers: list[Stream] = []
        self.is_empty = False
        self.coming: dict[tuple[StoredWeight, PartKey], torch.Tensor] = {}
        """The memory of what is on its way, for other loads to take."""
        renew_after_fork(self)

    def renew(self) -> None:
        """Counts as failed and empty where it is on its way, in a process that was forked: nothing there brings it."""
        if not self._ready.is_set():
            self.is_empty = self._has_failed = True
            self._ready = threading.Event()  # a thread of the parent may have had its lock
            self._ready.set()

    @property
    def has_arrived(self) -> bool:
        """Whether all of it is on the device, or will be when the lane's stream comes to it."""
        return self._ready.is_set() and not self._has_failed

    def begin(self, fill: Callable[[], list[torch.Tensor]]) -> None:
        """Has the lane bring them, and the slots know that it is on its way."""
        super().begin(fill)
        if (slots := self._slots()) is not None:
            slots.expect(self)

    def empty(self) -> None:
        """Has the slot count as empty, so that the next call fills it; a call that uses it now keeps what it has."""
        self.is_empty = True
        if (slots := self._slots()) is not None:
            slots.leave(self._place, self)

    def settle(self) -> None:
        """Blocks the host until the lane has done with it."""
        self._ready.wait()

    def _read_on(self, stream: Stream) -> None:
        """Notes that a stream reads it, which may use its memory longer than it is kept."""
        if stream is not None and stream not in self._readers:
            self._readers.append(stream)
            for tensor in self._tensors:
                if tensor.device == self._there.device:
                    self._there.keep(tensor, stream)

    def _fail(self) -> None:
        self.empty()
        self.coming.clear()


class KeptSlots:
    """The slots of one program that are filled once; several threads may use them at a time."""

    def __init__(self) -> None:
        self._lock = ForkSafeLock()
        self._noting = ForkSafeLock()  # within any other, for ``leave`` is called by whoever holds the store's
        self.renew()
        renew_after_fork(self)

    def renew(self) -> None:
        """Forgets what fills them, in a process that was forked: nothing there brings it."""
        self._filled: dict[Place, KeptLoad] = {}
        self._begun: weakref.WeakSet[KeptLoad] = weakref.WeakSet()  # the lane has them while they are on their way

    def is_filled(self, place: Place) -> bool:
        """Whether there is something in a slot, or on its way there."""
        return self._found(place) is not None

    def _found(self, place: Place) -> KeptLoad | None:
        found = self._filled.get(place)
        return None if found is None or found.is_empty else found

    def start(self, place: Place, begin: Callable[[], KeptLoad]) -> KeptLoad:
        """What fills a slot; where that is empty, it is begun."""
        found = self._found(place)
        if found is not None:
            return found
        with self._lock:
            found = self._found(place)
            if found is None:
                found = begin()
                self._note(place, found)
            return found

    def expect(self, load: KeptLoad) -> None:
        """Has `settle` wait for a load, also where it is emptied on its way."""
        with self._noting:
            self._begun.add(load)

    def _note(self, place: Place, load: KeptLoad) -> None:
        with self._noting:
            self._filled[place] = load
        if load.is_empty:  # since before it was noted, so that nobody could have it leave
            self.leave(place, load)

    def leave(self, place: Place, load: KeptLoad) -> None:
        """Forgets what filled a slot."""
        with self._noting:
            if self._filled.get(place) is load:
                self._filled.pop(place, None)

    def clear(self) -> None:
        """Has all of them be empty."""
        for load in list(self._filled.values()):
            load.empty()

    def settle(self) -> None:
        """Blocks the host until nothing is on its way into any of them."""
        with self._noting:
            begun = list(self._begun)
        for load in begun:
            load.settle()
