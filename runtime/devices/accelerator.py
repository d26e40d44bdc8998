"""What a device can do besides computing: streams, events, pinned memory and memory statistics, in one thin wrapper.

`accelerator_of` is the only place that asks what type a device has. On a device without streams, as the CPU, every
function does nothing and costs nothing, so that callers need no branches.
"""

from __future__ import annotations

import functools
import time
from collections.abc import Hashable, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch

from .pinned import PinnedMemory

Stream = Any
"""A stream of whatever device module it came from, or None on a device without streams."""

Event = Any
"""An event of whatever device module it came from, or None on a device without streams."""


_AS_IT_IS: AbstractContextManager[object] = nullcontext()

_FRESH = 0.2  # seconds for which an answer of the driver, which takes a while, is good enough


class Accelerator:
    """A device without streams: work on it is done when the call returns.

    Args:
        device: the device, with its index.
    """

    is_host = False
    has_host_kernels = False
    """Whether the host computes what is computed here, so that numbers come out as there."""
    has_streams = False
    runs_triton = False
    """Whether Triton compiles for devices of this type, where it is installed."""
    probe_bytes = 0
    """How much a self-test sends to learn whether copies arrive intact; 0 where there is nothing to learn."""

    def __init__(self, device: torch.device) -> None:
        self.device = device

    def side_stream(self, purpose: Hashable = None) -> Stream:
        """Returns the device's one stream for a purpose besides computing, the same at each call."""
        return None

    def current_stream(self) -> Stream:
        """Returns the stream that this thread's work on the device goes to."""
        return None

    def use(self, stream: Stream) -> AbstractContextManager[object]:
        """Sends this thread's work on the device to a stream for a while."""
        return nullcontext()

    def choose(self, stream: Stream) -> None:
        """Sends this thread's work on the device to a stream from now on."""

    def as_current(self) -> AbstractContextManager[object]:
        """Makes the device the one that this thread's launches go to for a while."""
        return nullcontext()

    def record(self, stream: Stream) -> Event:
        """Marks what is on a stream so far."""
        return None

    def wait(self, stream: Stream, event: Event) -> None:
        """Lets what comes next on a stream wait for an event, which may be another device's."""
        if event is not None:
            event.synchronize()

    def keep(self, tensor: torch.Tensor, stream: Stream) -> None:
        """Lets a tensor's memory be used again only when a stream is done with it."""

    def synchronize(self) -> None:
        """Blocks the host until everything on the device is done."""

    def finish(self) -> None:
        """Blocks the host until all is done that is on the stream of this thread, or on the only one."""
        event = self.record(self.current_stream())
        self.synchronize() if event is None else event.synchronize()

    def pin(self, tensor: torch.Tensor) -> torch.Tensor:
        """Returns a CPU tensor in memory that copies to this device need not stage."""
        return tensor

    def is_pinned(self, tensor: torch.Tensor) -> bool:
        """Whether a CPU tensor lies in memory that copies to this device need not stage."""
        return True

    def empty_pinned_like(self, tensor: torch.Tensor) -> torch.Tensor | None:
        """Makes a CPU tensor of a form, with its strides, in memory for weights from which copies need not be staged.

        None where there is no such memory, or the tensor does not fill the memory that it lies in.
        """
        return None

    def source(self, tensor: torch.Tensor) -> torch.Tensor:
        """The tensor from which a CPU tensor is to be copied to this device, over the same memory."""
        return tensor

    def stretch(self, address: int, nbytes: int) -> torch.Tensor | None:
        """Bytes of pinned memory for weights from an address on, to be copied to this device; None if they are not."""
        return None

    def empty_on_host(self, size: Sequence[int], stride: Sequence[int], dtype: torch.dtype) -> torch.Tensor:
        """Makes a CPU tensor that copies from this device need not stage."""
        return torch.empty_strided(size, stride, dtype=dtype)

    def host_view(self, tensor: torch.Tensor) -> torch.Tensor | None:
        """Gives a tensor's memory as a CPU tensor that the host may write now, or None where it cannot."""
        return None

    def ordinary(self, tensor: torch.Tensor) -> torch.Tensor:
        """Makes a tensor over the same memory that inference mode has no hold on; call it outside that mode."""
        empty = torch.empty(0, dtype=tensor.dtype, device=tensor.device)
        return empty.set_(tensor.untyped_storage(), tensor.storage_offset(), tensor.size(), tensor.stride())

    def memory(self) -> tuple[int, int]:
        """Returns the bytes in use and their peak; both are 0 where nobody counts."""
        return 0, 0

    def recent_peak(self) -> int:
        """Returns the most bytes in use since the last such question, or those now where only one peak is counted."""
        return self.memory()[0]

    def reserved_peak(self) -> int:
        """Returns the most bytes that the allocator held of the device, in use or not; 0 where nobody counts."""
        return self.memory()[1]

    def bound(self, nbytes: int | None) -> None:
        """Has the allocator of this process hold no more of the device than so many bytes; None takes it back."""

    def room(self) -> int | None:
        """Returns about how many bytes are free for new tensors, or None where nobody counts them."""
        return None

    def reset_peak(self) -> None:
        """Starts the peak again from what is in use now."""

    def empty_cache(self) -> None:
        """Gives memory that the allocator holds for later use back to the device."""

    def uncounted(self) -> AbstractContextManager[object]:
        """Keeps what is done meanwhile out of the statistics, where that can be."""
        return nullcontext()


class Host(Accelerator):
    """The CPU, which runs the program and needs none of this."""

    is_host = True
    has_host_kernels = True

    def host_view(self, tensor: torch.Tensor) -> torch.Tensor | None:
        """Gives the tensor itself."""
        return tensor


_PINNED: dict[str, PinnedMemory] = {}
"""Pinned memory for weights by type of device; all devices of a type take what one has pinned."""


class StreamAccelerator(Accelerator):
    """A device whose module has streams, events and counters, named as in `torch.cuda`."""

    has_streams = True
    runs_triton = True
    probe_bytes = 4 * 2**20

    def __init__(self, device: torch.device) -> None:
        super().__init__(device)
        self._module: Any = torch.get_device_module(device)
        self._side_streams: dict[Hashable, Stream] = {}
        self._room: int | None = None
        self._asked = -_FRESH
        self._fraction: float | None = None  # of the memory that the user lets the process have, while it is bounded

    def side_stream(self, purpose: Hashable = None) -> Stream:
        """Returns the device's one stream for a purpose besides computing, the same at each call."""
        if purpose not in self._side_streams:
            return self._side_streams.setdefault(purpose, self._module.Stream(device=self.device))
        return self._side_streams[purpose]

    def current_stream(self) -> Stream:
        """Returns the stream that this thread's work on the device goes to."""
        return self._module.current_stream(self.device)

    def use(self, stream: Stream) -> AbstractContextManager[object]:
        """Sends this thread's work on the device to a stream for a while."""
        context: AbstractContextManager[object] = self._module.stream(stream)
        return context

    def choose(self, stream: Stream) -> None:
        """Sends this thread's work on the device to a stream from now on; the current device stays what it is."""
        with self.as_current():
            self._module.set_stream(stream)

    def as_current(self) -> AbstractContextManager[object]:
        """Makes the device the one that this thread's launches go to for a while, if it is not that already."""
        if self._module.current_device() == self.device.index:  # asking costs less than changing to it and back
            return _AS_IT_IS
        context: AbstractContextManager[object] = self._module.device(self.device)
        return context

    def record(self, stream: Stream) -> Event:
        """Marks what is on a stream so far."""
        event = self._module.Event()
        event.record(stream)
        return event

    def wait(self, stream: Stream, event: Event) -> None:
        """Lets what comes next on a stream wait for an event; one of another type of device is waited for at once."""
        if event is None:
            return
        if isinstance(event, self._module.Event):
            stream.wait_event(event)
        else:
            event.synchronize()

    def keep(self, tensor: torch.Tensor, stream: Stream) -> None:
        """Lets a tensor's memory be used again only when a stream is done with it."""
        tensor.record_stream(stream)

    def synchronize(self) -> None:
        """Blocks the host until everything on the device is done."""
        self._module.synchronize(self.device)

    def pin(self, tensor: torch.Tensor) -> torch.Tensor:
        """Returns a CPU tensor, with its strides, in memory that copies to this device need not stage.

        One that lies there already is returned itself, and so is one for which there is no room.
        """
        memory = self._pinned_memory
        if memory.holds(tensor) or (made := self.empty_pinned_like(tensor)) is None:
            return tensor
        return made.copy_(tensor)

    def is_pinned(self, tensor: torch.Tensor) -> bool:
        """Whether a CPU tensor lies in pinned memory, which may be somebody else's."""
        return self._pinned_memory.holds(tensor) or tensor.is_pinned()

    def empty_pinned_like(self, tensor: torch.Tensor) -> torch.Tensor | None:
        """Makes a CPU tensor of a form, with its strides, in pinned memory for weights; None where there is no room.

        None also for a tensor that does not fill the memory that it lies in.
        """
        dense = torch.empty_like(tensor, device="meta").stride() == tensor.stride()
        if not dense or (found := self._pinned_memory.bytes(tensor.nbytes)) is None:
            return None
        start = found.storage_offset() // tensor.dtype.itemsize
        return found.view(tensor.dtype).as_strided(tensor.size(), tensor.stride(), start)

    @property
    def _pinned_memory(self) -> PinnedMemory:
        return _PINNED.get(self.device.type) or _PINNED.setdefault(self.device.type, PinnedMemory(self._pinned))

    def source(self, tensor: torch.Tensor) -> torch.Tensor:
        """The tensor to copy a CPU tensor from: PyTorch keeps what it pinned until copies from it are done."""
        memory = _PINNED.get(self.device.type)
        return tensor if memory is None or type(tensor) is not torch.Tensor else memory.as_pinned(tensor)

    def stretch(self, address: int, nbytes: int) -> torch.Tensor | None:
        """Bytes of pinned memory for weights from an address on, over the storage that PyTorch pinned."""
        memory = _PINNED.get(self.device.type)
        return None if memory is None else memory.stretch(address, nbytes)

    def empty_on_host(self, size: Sequence[int], stride: Sequence[int], dtype: torch.dtype) -> torch.Tensor:
        """Makes a CPU tensor that copies from this device need not stage, where the system pins memory."""
        try:
            return self._empty_pinned(size, stride, dtype)
        except (
            RuntimeError
        ):  # of what the system is out of, or another device stands in the way: staging is only slower
            return torch.empty_strided(size, stride, dtype=dtype)

    def _empty_pinned(self, size: Sequence[int], stride: Sequence[int], dtype: torch.dtype) -> torch.Tensor:
        return torch.empty_strided(size, stride, dtype=dtype, pin_memory=True)

    def _pinned(self, count: int) -> torch.Tensor:
        return self._empty_pinned((count,), (1,), torch.uint8)

    def memory(self) -> tuple[int, int]:
        """Returns the bytes in use and their peak."""
        return self._module.memory_allocated(self.device), self._module.max_memory_allocated(self.device)

    def reserved_peak(self) -> int:
        """Returns the most bytes that the allocator held of the device, in use or not."""
        return int(self._module.max_memory_reserved(self.device))

    def bound(self, nbytes: int | None) -> None:
        """Has the allocator of this process hold no more of the device than so many bytes; None takes it back."""
        bound = getattr(self._module, "set_per_process_memory_fraction", None)  # which not all have
        if bound is None or (nbytes is None and self._fraction is None):
            return
        if nbytes is None:
            bound(self._fraction, self.device)
            self._fraction = None
            return
        if self._fraction is None:
            before = getattr(self._module, "get_per_process_memory_fraction", None)
            self._fraction = float(before(self.device)) if before else 1.0
        total = int(self._module.get_device_properties(self.device).total_memory)
        bound(min(self._fraction, nbytes / total), self.device)

    def room(self) -> int | None:
        """Returns what the driver has free and what the allocator holds unused, as it was within the last moments."""
        now = time.monotonic()
        if now - self._asked > _FRESH:
            self._room, self._asked = self._room_now(), now
        return self._room

    def _room_now(self) -> int | None:
        try:
            cached = self._module.memory_reserved(self.device) - self._module.memory_allocated(self.device)
            return int(self._module.mem_get_info(self.device)[0]) + max(0, int(cached))
        except (RuntimeError, AttributeError, NotImplementedError):
            return None  # some drivers do not tell

    def reset_peak(self) -> None:
        """Starts the peak again from what is in use now."""
        self._module.reset_peak_memory_stats(self.device)

    def empty_cache(self) -> None:
        """Gives memory that the allocator holds for later use back to the device."""
        self._module.empty_cache()


class SimAccelerator(StreamAccelerator):
    """A simulated device: what is pinned for it is a note, and a self-test leaves no trace in its counters."""

    has_host_kernels = True
    runs_triton = False
    probe_bytes = 256

    def as_current(self) -> AbstractContextManager[object]:
        """Does nothing: no simulated device is the current one."""
        return nullcontext()

    def _empty_pinned(self, size: Sequence[int], stride: Sequence[int], dtype: torch.dtype) -> torch.Tensor:
        made: torch.Tensor = self._module.empty_pinned(size, stride, dtype)
        return made

    def is_pinned(self, tensor: torch.Tensor) -> bool:
        """Whether a CPU tensor lies in memory that counts as pinned."""
        noted: bool = self._pinned_memory.holds(tensor) or self._module.is_pinned(tensor)
        return noted

    def bound(self, nbytes: int | None) -> None:
        """Does nothing: the capacity of a simulated device is its bound, and nothing is held that is not in use."""

    def recent_peak(self) -> int:
        """Returns the most bytes in use since the last such question."""
        found: int = self._module.recent_peak(self.device)
        return found

    def room(self) -> int | None:
        """Returns the bytes that are free now."""
        free: int = self._module.mem_get_info(self.device)[0]
        return free

    def host_view(self, tensor: torch.Tensor) -> torch.Tensor | None:
        """Gives the memory of the tensor, and counts one copy from the host."""
        memory: torch.Tensor = self._module.host_view(tensor)
        return memory

    def ordinary(self, tensor: torch.Tensor) -> torch.Tensor:
        """Makes a tensor over the same simulated memory that inference mode has no hold on."""
        made: torch.Tensor = self._module.rewrap(tensor, super().ordinary(tensor._inner))  # type: ignore[attr-defined]
        return made

    def uncounted(self) -> AbstractContextManager[object]:
        """Keeps what is done meanwhile out of the device's statistics."""
        context: AbstractContextManager[object] = self._module.uncounted(self.device)
        return context


class MpsAccelerator(Accelerator):
    """Apple's device: one stream that the host can wait for, and no count of the peak."""

    def synchronize(self) -> None:
        """Blocks the host until everything on the device is done."""
        torch.mps.synchronize()

    def memory(self) -> tuple[int, int]:
        """Returns the bytes in use, for the peak as well since nobody counts it."""
        in_use = torch.mps.current_allocated_memory()
        return in_use, in_use

    def room(self) -> int | None:
        """Returns what is left of the memory that Apple recommends to use."""
        return max(0, torch.mps.recommended_max_memory() - torch.mps.current_allocated_memory())

    def empty_cache(self) -> None:
        """Gives memory that the allocator holds for later use back to the device."""
        torch.mps.empty_cache()


_KINDS: dict[str, type[Accelerator]] = {
    "cpu": Host,
    "cuda": StreamAccelerator,
    "xpu": StreamAccelerator,
    "sim": SimAccelerator,
    "mps": MpsAccelerator,
}


def has_memory(tensor: torch.Tensor) -> bool:
    """Whether a CPU tensor lies in memory of PyTorch's, or in what is pinned for weights, and is no view of a file."""
    return tensor.untyped_storage().resizable() or any(memory.holds(tensor) for memory in list(_PINNED.values()))


@functools.cache
def accelerator_of(device: torch.device) -> Accelerator:
    """Returns what a device can do; a device of an unknown type is taken to have no streams."""
    return _KINDS.get(device.type, Accelerator)(device)
