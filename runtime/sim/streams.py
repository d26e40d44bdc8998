"""Streams of simulated devices: vector clocks that make a missing wait an error instead of a race.

Every stream counts the operations put on it, and knows up to which operation of every other stream it has waited.
A buffer remembers who wrote it last and who has read it since (see `ledger`). The host is one more party: what it
launches comes after everything that it has waited for itself. All threads count as one host; which stream is current
is a thread's own affair, as on real devices.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager

import torch

from ...compiler.errors import DovetailError
from .holds import sweep

Clock = dict[int, int]
"""Up to which operation of each stream, by the stream's number, somebody has waited."""

DeviceLike = torch.device | int | str | None


class RaceError(DovetailError, RuntimeError):
    """Two streams touch one buffer, and neither has waited for the other."""


class Host:
    """The host's own clock, and the copies to it and from it that are still on their way."""

    def __init__(self) -> None:
        self.clock: Clock = {}
        self.version = 0
        self._pending: dict[Delivery, None] = {}  # in the order of their launch
        self._lock = threading.RLock()

    @property
    def pending(self) -> dict[Delivery, None]:
        """The copies on their way, in the order of their launch."""
        sweep()
        return self._pending

    def join(self, clock: Clock) -> None:
        """Blocks the host until everything in `clock` is done."""
        sweep()  # what is gone went before
        with self._lock:
            joined = dict(self.clock)  # another thread may go through the one that there is
            _merge(joined, clock)
            self.clock = joined
            self.version += 1
        if self.pending:
            self.deliver(self.clock)

    def expect(self, delivery: Delivery) -> None:
        """Notes that a copy is on its way."""
        with self._lock:
            self.pending[delivery] = None

    def deliver(self, clock: Clock) -> None:
        """Lets the copies arrive that are done once everything in `clock` is done, in the order of their launch."""
        with self._lock:
            self.bring([one for one in list(self.pending) if one.is_done(clock)])

    def bring(self, due: Iterable[Delivery]) -> None:
        """Lets copies arrive, each once."""
        with self._lock, torch.inference_mode():
            for one in due:
                if one in self.pending:
                    self.pending.pop(one, None)
                    one.arrive()

    def filling(self, storage: int) -> list[Delivery]:
        """The copies that have not filled a storage of the host yet."""
        with self._lock:
            return [one for one in list(self.pending) if one.storage == storage]

    def forget(self, gone: Iterable[Delivery]) -> None:
        """Lets copies come to nothing whose target is gone; waits for nobody, who may wait for a sweep."""
        for one in gone:
            self._pending.pop(one, None)


class Delivery:
    """A copy to the host, or from its pinned memory, that nobody has waited for yet.

    Args:
        stream: the stream that the copy was put on.
        storage: the address of the host's storage that it writes, or None when it writes a device's.
        arrive: reads the source and writes the target.
    """

    def __init__(self, stream: Stream, storage: int | None, arrive: Callable[[], object]) -> None:
        self.stream = stream
        self.time = stream.now
        self.storage = storage
        self.arrive = arrive

    def is_done(self, clock: Clock) -> bool:
        """Says whether somebody with this clock has waited for the copy."""
        return clock.get(self.stream.number, 0) >= self.time


HOST = Host()
_lock = threading.RLock()
_all: list[Stream] = []
_defaults: dict[int, Stream] = {}


class _Chosen(threading.local):
    def __init__(self) -> None:
        self.streams: dict[int, Stream] = {}


_chosen = _Chosen()


class Stream:
    """A queue of operations on one simulated device, used like `torch.cuda.Stream`.

    Args:
        device: a sim device, its index, or None for the first one.
        priority: accepted for likeness, and of no effect.
    """

    __slots__ = ("_changes", "_host_version", "_settled", "clock", "device", "hazards", "now", "number")

    def __init__(self, device: DeviceLike = None, priority: int = 0) -> None:
        self.device = torch.device("sim", index_of(device))
        self.now = 0
        self.clock: Clock = {}
        self.hazards: list[tuple[int, int]] = []
        self._host_version = 0
        self._changes = self._settled = 0
        with _lock:
            _all.append(self)
            self.number = len(_all)

    def __repr__(self) -> str:
        return f"stream {self.number}"

    def launch(self) -> int:
        """Puts one more operation on the stream and returns its time."""
        if self._host_version != HOST.version:
            self._host_version = HOST.version
            _merge(self.clock, HOST.clock)
        self.now += 1
        self._changes += 1
        return self.now

    def has_waited(self, number: int, time: int) -> bool:
        """Says whether what comes next on this stream comes after operation `time` of stream `number`."""
        return number == self.number or self.clock.get(number, 0) >= time or HOST.clock.get(number, 0) >= time

    def everything(self) -> Clock:
        """Returns the clock of somebody who has waited for all that is on the stream."""
        return {**self.clock, self.number: self.now}

    def wait_for(self, clock: Clock) -> None:
        """Makes what comes next wait for everything in `clock`."""
        sweep()  # what is gone went before
        _merge(self.clock, clock)
        self._changes += 1

    def wait_stream(self, stream: Stream) -> None:
        """Makes what comes next wait for all that is on another stream."""
        self.wait_for(stream.everything())

    def wait_event(self, event: Event) -> None:
        """Makes what comes next wait for what the event recorded."""
        self.wait_for(event.clock)

    def record_event(self, event: Event | None = None) -> Event:
        """Records all that is on the stream so far."""
        event = event or Event()
        event.record(self)
        return event

    def synchronize(self) -> None:
        """Blocks the host until all that is on the stream is done."""
        changes = self._changes
        if changes != self._settled or HOST.pending:  # otherwise the host has waited for it
            HOST.join(self.everything())
            self._settled = changes

    def query(self) -> bool:
        """Waits for the work and says that it is done, since simulated devices do theirs while the host waits."""
        self.synchronize()
        return True


class Event:
    """A mark on a stream that others can wait for, used like `torch.cuda.Event`."""

    __slots__ = ("clock",)

    def __init__(self, enable_timing: bool = False) -> None:
        self.clock: Clock = {}

    def record(self, stream: Stream | None = None) -> None:
        """Records all that is on a stream (the current one of `sim:0` by default) so far."""
        self.clock = (stream or current_stream()).everything()

    def wait(self, stream: Stream | None = None) -> None:
        """Makes what comes next on a stream wait for what was recorded."""
        (stream or current_stream()).wait_event(self)

    def synchronize(self) -> None:
        """Blocks the host until what was recorded is done."""
        HOST.join(self.clock)

    def query(self) -> bool:
        """Waits for what was recorded and says that it is done, see `Stream.query`."""
        self.synchronize()
        return True


def current_stream(device: DeviceLike = None) -> Stream:
    """Returns the stream that this thread's operations on a device go to."""
    index = index_of(device)
    return _chosen.streams.get(index) or default_stream(index)


def default_stream(device: DeviceLike = None) -> Stream:
    """Returns the stream that a device's operations go to when no other was chosen."""
    index = index_of(device)
    with _lock:
        if index not in _defaults:
            _defaults[index] = Stream(index)
        return _defaults[index]


@contextmanager
def stream(chosen: Stream | None) -> Iterator[None]:
    """Sends this thread's operations on the stream's device to it for a while; None changes nothing."""
    if chosen is None:
        yield
        return
    index, streams, before = chosen.device.index, _chosen.streams, current_stream(chosen.device)
    streams[index] = chosen
    try:
        yield
    finally:  # which calls nothing that an interrupt could come before
        streams[index] = before


def set_stream(chosen: Stream | None) -> None:
    """Sends this thread's operations on the stream's device to it from now on; None changes nothing."""
    if chosen is not None:
        _chosen.streams[chosen.device.index] = chosen


def synchronize(device: DeviceLike = None) -> None:
    """Blocks the host until everything on a device is done."""
    index = index_of(device)
    for one in list(_all):
        if one.device.index == index:
            one.synchronize()


def index_of(device: DeviceLike) -> int:
    """Returns the index of a sim device that is given in any spelling; None is the first one."""
    if isinstance(device, torch.device):
        return device.index or 0
    if device is None:
        return 0
    return device if isinstance(device, int) else torch.device(device).index or 0


def _merge(clock: Clock, other: Clock) -> None:
    for number, time in other.items():
        if clock.get(number, 0) < time:
            clock[number] = time
