"""Slots: memory on a device through which weights come and go, and what is on its way into one.

A slot is filled on the lane of its device. It is filled again only when the device has done what read it. So memory is
made once for many loads, however deep they are brought ahead, and never more than was planned.
"""

from __future__ import annotations

import contextlib
import threading
import traceback
import weakref
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Protocol

import torch

from ...compiler.devices.device import Device, canonical_name
from ...compiler.errors import DoesNotFitError, WeightError
from ...compiler.units import format_bytes
from ..devices.accelerator import Accelerator, Event, Stream, accelerator_of
from ..devices.fork import ForkSafeLock, renew_after_fork
from ..devices.out_of_memory import fetched, ran_out
from ..devices.recording import spanned
from .lane import lane_of

if TYPE_CHECKING:
    from .landing import Landing, Places

Fill = Callable[["Slot"], list[torch.Tensor]]
"""Puts weights into a slot, on the current stream of its device, and returns them."""

SlotSizes = Mapping[Device, Sequence[int]]
"""The bytes of each slot of each device."""


class Slot:
    """Bytes on a device, and the event after which nothing there reads them."""

    def __init__(self, device: Device, nbytes: int) -> None:
        self.there = accelerator_of(device.torch)
        with self.there.use(self.there.side_stream("weights")):
            self.memory = fetched(lambda: torch.empty(nbytes, dtype=torch.uint8, device=device.torch))
        self.places: weakref.WeakKeyDictionary[Landing, Places] = weakref.WeakKeyDictionary()
        self.free: Event = None
        self._readers: list[Stream] = []

    def read_on(self, stream: Stream) -> None:
        """Notes that a stream reads it, which may use its memory longer than it is kept."""
        if stream is not None and stream not in self._readers:
            self._readers.append(stream)
            self.there.keep(self.memory, stream)


class Filling(ABC):
    """Weights on their way to a device, as its lane brings them.

    Args:
        there: the device.
        what: its name, for whoever records.
    """

    def __init__(self, there: Accelerator, what: str) -> None:
        self._there, self._what = there, what
        self._fill: Callable[[], list[torch.Tensor]] | None = None
        self._tensors: list[torch.Tensor] = []
        self._arrived: Event = None
        self._error: BaseException | None = None
        self._has_failed = False
        self._ready = threading.Event()

    def begin(self, fill: Callable[[], list[torch.Tensor]]) -> None:
        """Has the lane bring them: ``fill`` returns them, on their way on the current stream."""
        self._fill = fill
        lane_of(self._there.device).submit(self._bring)

    def wait(self) -> list[torch.Tensor]:
        """The tensors in order, to be used on the device's current stream, which waits for them; raises what failed."""
        self._ready.wait()
        if self._has_failed:
            self._raise()
        stream = self._there.current_stream()
        self._there.wait(stream, self._arrived)
        self._read_on(stream)
        return self._tensors

    def _raise(self) -> None:
        """Raises what failed, which is not kept: it has a traceback that has this."""
        error, self._error = self._error, None
        try:
            raise error or WeightError(f"{self._what} failed in another call, which was told why: call again")
        finally:
            del error

    def _bring(self) -> None:
        fill, there = self._fill, self._there
        try:
            if fill is not None:
                lane = f"loads to {canonical_name(there.device)}"
                fill = spanned(lane, self._what, fill, lambda _: there.finish())
                stream = there.side_stream("weights")
                with there.use(stream), torch.inference_mode(False), torch.no_grad():
                    self._tensors = fill()
                    self._arrived = there.record(stream)
        except BaseException as error:
            traceback.clear_frames(error.__traceback__)  # which hold tensors
            self._error, self._has_failed = error, True
            self._fail()
        finally:
            fill = self._fill = None  # this frame is in the error's traceback
            self._ready.set()

    @abstractmethod
    def _read_on(self, stream: Stream) -> None:
        """Notes that a stream reads them."""

    def _fail(self) -> None:
        """Takes notice, on the lane, that they could not be brought."""
        return


class StagedLoad(Filling):
    """Weights on their way into a slot that is filled again when they are released.

    Args:
        slot: the slot, which is not to be filled by another load before `release`.
        fill: puts them there.
        done: is called when nobody uses them any more.
        what: its name, for whoever records.
    """

    def __init__(self, slot: Slot, fill: Fill, done: Callable[[], None], what: str = "") -> None:
        super().__init__(slot.there, what)
        self._slot = slot
        self._finish: Callable[[], None] | None = done
        self.begin(partial(self._into_slot, fill, slot.free))

    def release(self) -> None:
        """Lets go of the tensors: the slot is filled again after what the device does with them now."""
        self._tensors = []
        self._slot.free = self._there.record(self._there.current_stream())
        finish, self._finish = self._finish, None  # which knows this load
        if finish is not None:
            finish()

    def abandon(self) -> None:
        """Gives a load up whose call has failed: it is not begun, or waited for; then the slot is free."""
        self._fill = None
        self._ready.wait()
        with contextlib.suppress(RuntimeError):  # of a device that is lost, which has been told
            self.release()

    def _into_slot(self, fill: Fill, free: Event) -> list[torch.Tensor]:
        self._there.wait(self._there.side_stream("weights"), free)
        return fill(self._slot)

    def _read_on(self, stream: Stream) -> None:
        self._slot.read_on(stream)


class Kept(Protocol):
    """Keeps weights on devices for a phase, in slots that are filled once."""

    def end_phase(self) -> None:
        """Lets go of them."""


class Staging:
    """The slots of all devices that a component, or a program, brings weights through; one call uses them at a time."""

    def __init__(self) -> None:
        self._turn = ForkSafeLock()
        self._kept: weakref.WeakSet[Kept] = weakref.WeakSet()
        self.renew()
        renew_after_fork(self)

    def renew(self) -> None:
        """Forgets slots and what is on its way into them, in a process that was forked: nothing there brings it."""
        self._owner: weakref.ref[object] | None = None  # which has this
        self._slots: dict[Device, list[Slot]] = {}
        self._loads: list[StagedLoad] = []

    def tell(self, kept: Kept) -> None:
        """Has somebody hear of the end of each phase, who keeps weights for it."""
        self._kept.add(kept)

    def enter(self, owner: object) -> bool:
        """Notes whose call comes, and whether another's came before; then the slots of that are gone."""
        if self._owner is not None and self._owner() is owner:
            return False
        with self._turn:
            self._owner = weakref.ref(owner)
            self._reserve({})
        return True

    @contextlib.contextmanager
    def call(self, sizes: SlotSizes) -> Iterator[None]:
        """One call, for which there are slots of so many bytes; what it leaves behind when it fails is given up."""
        with self._turn:
            self._reserve(sizes)
            try:
                yield
            finally:
                for load in list(self._loads):
                    load.abandon()

    def start(self, device: Device, number: int, fill: Fill, done: Callable[[], None], what: str = "") -> StagedLoad:
        """Starts to fill a slot of a device, for the call that goes on; ``what`` is the name of the load."""

        def finish() -> None:
            self._loads.remove(load)
            done()

        load = StagedLoad(self._slots[device][number], fill, finish, what)
        self._loads.append(load)
        return load

    def drop(self) -> None:
        """Lets go of all slots, and of what is kept for a phase, unless a call uses them now."""
        if self._turn.acquire(blocking=False):
            try:
                self._slots.clear()
                for one in list(self._kept):
                    one.end_phase()
            finally:
                self._turn.release()

    def _reserve(self, sizes: SlotSizes) -> None:
        """Lets go of slots of other sizes, then makes those that lack."""
        for device in list(self._slots):
            if [slot.memory.nbytes for slot in self._slots[device]] != list(sizes.get(device, ())):
                del self._slots[device]
        for device, wanted in sizes.items():
            if device not in self._slots:
                self._slots[device] = _made(device, wanted)


def _made(device: Device, sizes: Sequence[int]) -> list[Slot]:
    """New slots; raises DoesNotFitError when there is no room for them."""
    try:
        return [Slot(device, nbytes) for nbytes in sizes]
    except (RuntimeError, MemoryError) as error:
        if not ran_out(error):
            raise
        raise DoesNotFitError(
            f"{len(sizes)} slots for the weights that come and go need {format_bytes(sum(sizes))} on {device}: "
            f"{error}: list more devices, or give {device} a smaller share (tensor_split, max_vram)"
        ) from error
