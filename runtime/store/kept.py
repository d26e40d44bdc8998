"""Slots that are filled once: weights that stay on a device until a phase ends, as a load of a plan says.

The first call that finds a slot empty fills it, on the lane of its device; others find it filled, or wait for the same
filling. A slot is empty again when the phase has ended, when another program of the component has come that does not
keep what is in it, or when somebody changed a weight.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable

from ...compiler.devices.device import Device
from ..devices.accelerator import Accelerator, Stream
from ..devices.fork import ForkSafeLock, renew_after_fork
from .staging import Filling

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


class KeptSlots:
    """The slots of one program that are filled once; several threads may use them at a time."""

    def __init__(self) -> None:
        self._lock = ForkSafeLock()
        self.renew()
        renew_after_fork(self)

    def renew(self) -> None:
        """Forgets what fills them, in a process that was forked: nothing there brings it."""
        self._filled: dict[Place, KeptLoad] = {}

    def is_filled(self, place: Place) -> bool:
        """Whether there is something in a slot, or on its way there."""
        return place in self._filled

    def start(self, place: Place, begin: Callable[[], KeptLoad]) -> KeptLoad:
        """What fills a slot; where that is empty, it is begun."""
        found = self._filled.get(place)
        if found is not None:
            return found
        with self._lock:
            found = self._filled.get(place)
            if found is None:
                found = begin()
                if not found.is_empty:
                    self._filled[place] = found
            return found

    def leave(self, place: Place, load: KeptLoad) -> None:
        """Forgets what filled a slot."""
        if self._filled.get(place) is load:
            self._filled.pop(place, None)

    def clear(self) -> None:
        """Has all of them be empty."""
        for load in list(self._filled.values()):
            load.empty()

    def settle(self) -> None:
        """Blocks the host until nothing is on its way into any of them."""
        for load in list(self._filled.values()):
            load.settle()
