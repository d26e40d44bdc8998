"""The memory of simulated devices: one ledger entry a storage, shared by its views and given back with the last one."""

from __future__ import annotations

import threading
from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass

import torch

from ..devices.host_memory import host_memory
from .holds import Hold, sweep
from .regions import Region, are_apart
from .streams import HOST, Delivery, DeviceLike, RaceError, Stream, default_stream, index_of


@dataclass(frozen=True)
class SimStats:
    """What one simulated device has counted.

    Args:
        in_use: bytes of all storages that live on the device.
        peak: the highest `in_use` since the last reset.
        ops: operations that ran on the device.
        bytes_in: bytes copied to it from other devices and the host.
        bytes_out: bytes copied from it to other devices and the host.
    """

    in_use: int
    peak: int
    ops: int
    bytes_in: int
    bytes_out: int


class _Own(threading.local):
    """What a thread has of a device: in how many stretches of uncounted work it is; what others do meanwhile counts."""

    uncounted = 0


class SimDevice:
    """One simulated device: its capacity and its counters."""

    def __init__(self, index: int, capacity: int) -> None:
        self.index = index
        self.device = torch.device("sim", index)
        self.capacity = capacity
        self.default = default_stream(index)
        self._in_use = self.peak = self.recent = self.ops = self.bytes_in = self.bytes_out = 0
        self.lock = threading.RLock()
        self.own = _Own()

    @property
    def in_use(self) -> int:
        """Bytes of all storages that live on the device."""
        sweep()
        return self._in_use

    def require(self, size: int) -> None:
        """Raises `torch.OutOfMemoryError` unless `size` more bytes fit."""
        sweep()
        self._check(size)

    def _check(self, size: int) -> None:
        if self._in_use + size > self.capacity and not self.own.uncounted:
            raise torch.OutOfMemoryError(
                f"sim{self.index} is out of memory: asked for {_text(size)}, but {_text(self._in_use)} of its "
                f"{_text(self.capacity)} are in use"
            )

    def count_op(self) -> None:
        """Counts an operation, which several threads may do at once."""
        if not self.own.uncounted:
            with self.lock:
                self.ops += 1

    def count(self, *, bytes_in: int = 0, bytes_out: int = 0) -> None:
        """Counts bytes that are copied, which several threads may do at once."""
        if self.own.uncounted:
            return
        with self.lock:
            self.bytes_in += bytes_in
            self.bytes_out += bytes_out

    def take(self, buffer: Buffer, size: int) -> None:
        """Counts a buffer as in use, which has so many bytes."""
        self.require(size)
        with self.lock:
            self._check(size)  # another thread may have taken some meanwhile
            used = self._in_use + size
            self.peak, self.recent = max(self.peak, used), max(self.recent, used)
            self._in_use, buffer.size = used, size  # an interrupt finds both or none

    def give_back(self, buffer: Buffer) -> None:
        """Counts the bytes of a buffer as free again."""
        with self.lock:
            self._in_use, buffer.size = self._in_use - buffer.size, 0


class Buffer:
    """The ledger entry of one storage: its bytes, its last writer and the readers since.

    It belongs to the stream that was current when it was made: once freed, that stream may get the same memory again
    at once. So a free while another stream still works on the buffer is a race with the next allocation, unless a
    stream was recorded on it that had waited for that work by the time of the free.
    """

    __slots__ = ("_written", "coming", "device", "home", "kept", "parts", "reads", "size", "storage", "writer")

    def __init__(self, device: SimDevice, storage: torch.UntypedStorage, stream: Stream) -> None:
        self.size = 0
        self.coming: list[Delivery] | None = None
        sweep()
        if stream.hazards:
            _check_reuse(stream)
        self.device = device
        self.storage: int = storage._cdata
        self.home = self.writer = stream
        self._written = stream.now
        self.reads: dict[int, int] = {}
        self.kept: list[Stream] | None = None
        self.parts: list[tuple[Region, Stream, int]] | None = None  # written apart from one another since `_written`

    def hold(self, nbytes: int) -> Hold:
        """Counts its bytes as in use, until the hold that is returned is gone."""
        hold = Hold(self._leave)
        if not self.device.own.uncounted:
            self.device.take(self, nbytes)
        return hold

    def _leave(self) -> None:
        if self.coming:
            HOST.forget(self.coming)
        if self.size:
            self._leave_hazards()
            self.device.give_back(self)

    def read(self, stream: Stream, what: object) -> None:
        """Notes that the operation launched last on a stream reads the buffer."""
        writer = self.writer
        if writer is not stream and not stream.has_waited(writer.number, self._written):
            raise RaceError(
                f"{what} on {stream} of {stream.device} reads a buffer last written on {writer} of {writer.device} "
                f"without waiting: record an event on {writer} and let {stream} wait for it"
            )
        for _, writer, time in self.parts or ():
            if not stream.has_waited(writer.number, time):
                raise RaceError(
                    f"{what} on {stream} of {stream.device} reads a buffer of which {writer} of {writer.device} wrote "
                    f"a part, without waiting: record an event on {writer} and let {stream} wait for it"
                )
        self.reads[stream.number] = stream.now
        if self.coming:
            self.settle()

    def write(self, stream: Stream, what: object, region: Region | None = None, late: bool = False) -> None:
        """Notes that the operation launched last on a stream writes the buffer, or no more than a part of it.

        One that writes late, in the order of what else does (`expect`), lets nothing arrive before it.
        """
        parts = [one for one in self.parts or () if region is None or not are_apart(region, one[0])]
        earlier = [(writer.number, time) for _, writer, time in parts]
        for number, time in ((self.writer.number, self._written), *self.reads.items(), *earlier):
            if not stream.has_waited(number, time):
                raise RaceError(
                    f"{what} on {stream} of {stream.device} writes a buffer that stream {number} still uses: "
                    f"record an event on stream {number} and let {stream} wait for it"
                )
        with self.device.lock:  # devices' threads write other parts of one buffer meanwhile
            if region is None:
                self.writer, self._written, self.parts = stream, stream.now, None
                self.reads.clear()
            else:
                self.parts = [one for one in self.parts or () if one not in parts] + [(region, stream, stream.now)]
        if self.coming and not late:
            self.settle()

    def expect(self, delivery: Delivery) -> None:
        """Notes a copy from pinned memory, which reads its source when the host waits for it or the buffer is used."""
        with self.device.lock:
            self.coming = [*(self.coming or ()), delivery]
        HOST.expect(delivery)

    def settle(self) -> None:
        """Lets the copies from pinned memory arrive that are on their way to the buffer."""
        with self.device.lock:
            coming, self.coming = self.coming or [], None
        HOST.bring(coming)

    def keep(self, stream: Stream) -> None:
        """Lets the memory be used again only when a stream is done with it, like `Tensor.record_stream`.

        What counts is what the stream has done or waited for by the time of the free.
        """
        with self.device.lock:
            self.kept = [*(self.kept or ()), stream]

    def _leave_hazards(self) -> None:
        last = self.reads
        for _, writer, time in self.parts or ():
            last[writer.number] = max(time, last.get(writer.number, 0))
        last.setdefault(self.writer.number, self._written)
        if len(last) == 1 and self.home.number in last:
            return
        safe = (self.home, *(self.kept or ()))
        self.home.hazards += [one for one in last.items() if not any(stream.has_waited(*one) for stream in safe)]


def _check_reuse(stream: Stream) -> None:
    hazards, stream.hazards = stream.hazards, []
    for number, time in hazards:
        if not stream.has_waited(number, time):
            raise RaceError(
                f"an allocation on {stream} of {stream.device} may get memory that was freed while stream {number} "
                f"still uses it: record stream {number} on the tensor, or wait for it before the tensor dies"
            )


_devices: dict[int, SimDevice] = {}
_spares: list[int] = []
_UNBOUND = 2**63 - 1


def device_of(device: DeviceLike) -> SimDevice:
    """Returns a simulated device; one that is named for the first time gets the host's memory as its capacity."""
    index = index_of(device)
    known = _devices.get(index)
    if known is None:
        known = _devices.setdefault(index, SimDevice(index, host_memory()))
    return known


def set_capacities(capacities: Mapping[int, int]) -> None:
    """Gives each device its capacity, in bytes."""
    for index, capacity in capacities.items():
        device_of(index).capacity = capacity


def device_count() -> int:
    """Returns how many simulated devices there are, counted up to the highest one that was named."""
    return max(_devices, default=-1) + 1


def spare(taken: Collection[int]) -> int:
    """Returns the index of a device for what is only rehearsed: one that nobody else has named, of no bound.

    It is given out again where it is not among those that are ``taken`` and got no capacity since.
    """
    for index in _spares:
        if index not in taken and device_of(index).capacity == _UNBOUND:
            return index
    index = max(device_count(), *(one + 1 for one in taken), 0)
    _spares.append(index)
    set_capacities({index: _UNBOUND})
    return index


def capacity(device: DeviceLike = None) -> int:
    """Returns the capacity of a device in bytes."""
    return device_of(device).capacity


def stats(device: DeviceLike = None) -> SimStats:
    """Returns what a device has counted so far."""
    one = device_of(device)
    return SimStats(one.in_use, one.peak, one.ops, one.bytes_in, one.bytes_out)


def reset_peak(device: DeviceLike = None) -> None:
    """Starts the peak of a device again from what is in use now."""
    one = device_of(device)
    one.peak = one.in_use


def recent_peak(device: DeviceLike = None) -> int:
    """Returns the highest bytes in use since the last such question; the peak of the statistics is another one."""
    one = device_of(device)
    found, one.recent = max(one.recent, one.in_use), one.in_use
    return found


def reset_stats(device: DeviceLike = None) -> None:
    """Starts the peak of a device again from what is in use now, and its other counters from 0."""
    one = device_of(device)
    one.peak, one.ops, one.bytes_in, one.bytes_out = one.in_use, 0, 0, 0


@contextmanager
def uncounted(device: DeviceLike = None) -> Iterator[None]:
    """Keeps what this thread does on a device meanwhile out of its counters and of its capacity."""
    one = device_of(device)
    one.own.uncounted += 1
    try:
        yield
    finally:
        one.own.uncounted -= 1


def _text(size: int) -> str:
    return f"{size} bytes" if size < 2**20 else f"{size / 2**20:.1f} MiB" if size < 2**30 else f"{size / 2**30:.1f} GiB"
