"""Two pieces of host memory through which bytes go to a device: while one is sent, the other is filled."""

from __future__ import annotations

import threading
from types import TracebackType

import torch

from .accelerator import Accelerator, Event, Stream


class _Slot:
    """A piece of host memory, grown when more is asked for, and the copy that last left it."""

    def __init__(self, accelerator: Accelerator) -> None:
        self._accelerator = accelerator
        self._memory: dict[str, torch.Tensor] = {}
        self.sent: Event = None

    def bytes(self, use: str, count: int) -> torch.Tensor:
        """So many bytes of the memory for a use."""
        if use not in self._memory or self._memory[use].numel() < count:
            self._memory[use] = self._accelerator.empty_on_host((count,), (1,), torch.uint8)
        return self._memory[use][:count]


class Ring:
    """Sends host memory to one device, for one thread at a time (`with ring:`).

    On a device with streams copies run on its side stream for weights; what comes next on the stream that is current
    at the end comes after them, and they come after what was on it at the beginning. So a target may be memory that
    the current stream has used and will use, and nothing else need be said about it.
    """

    def __init__(self, accelerator: Accelerator) -> None:
        self._accelerator = accelerator
        self._slots = [_Slot(accelerator), _Slot(accelerator)]
        self._lock = threading.Lock()
        self._stream: Stream = None

    def __enter__(self) -> Ring:
        self._lock.acquire()
        try:
            self._stream = self._accelerator.side_stream("weights")
            self._follow(self._stream, self._accelerator.current_stream())
        except BaseException:
            self._lock.release()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            self._follow(self._accelerator.current_stream(), self._stream)
        finally:
            self._lock.release()

    def next(self, count: int) -> torch.Tensor:
        """Bytes of host memory to fill, once they have been sent if they were in use."""
        self._slots.reverse()
        slot = self._slots[0]
        if slot.sent is not None:
            slot.sent.synchronize()
            slot.sent = None
        return slot.bytes("raw", count)

    def send(self, source: torch.Tensor, target: torch.Tensor) -> None:
        """Sends what `next` gave and was filled with; a dtype is changed on the host, and takes no device memory."""
        slot = self._slots[0]
        if source.dtype != target.dtype:
            cast = slot.bytes("cast", source.numel() * target.dtype.itemsize).view(target.dtype)
            source = cast.copy_(source)
        with self._accelerator.use(self._stream):
            target.copy_(source, non_blocking=self._accelerator.has_streams)
        slot.sent = self._accelerator.record(self._stream)

    def _follow(self, later: Stream, earlier: Stream) -> None:
        self._accelerator.wait(later, self._accelerator.record(earlier))
