"""Copies between simulated devices and the host: their order on streams, their bytes, and their arrival.

A non-blocking copy to the host arrives when the host waits for its stream, as on real devices; what stands there
until then is a pattern of ones, which is NaN in every floating type. A non-blocking copy from pinned memory reads its
source as late: when the host waits for its stream, or when its target is used; from other host memory it reads it at
once, as the staging of CUDA does. Memory is pinned if `empty_pinned` made it. Copies between two devices run on the
current stream of the source, which waits for the target's current stream before and is waited for by it after, as on
CUDA.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch._ops import OpOverload
from torch.multiprocessing.reductions import StorageWeakRef

from .ledger import device_of
from .regions import region_of
from .streams import HOST, Delivery, RaceError, Stream, current_stream
from .tensor import CPU, HANDLERS, SimTensor, aten, compute, wrap

_Hook = Callable[[torch.Tensor], object]
_broken: dict[tuple[int, int], _Hook] = {}


@contextmanager
def broken_link(source: int, target: int, corrupt: _Hook | None = None) -> Iterator[None]:
    """Makes direct copies from one simulated device to another arrive damaged, as some boards do.

    Args:
        source: index of the device that the copies leave from.
        target: index of the device that they go to.
        corrupt: changes the arrived CPU tensor in place; by default everything becomes 0.
    """
    _broken[source, target] = corrupt or torch.Tensor.zero_
    try:
        yield
    finally:
        del _broken[source, target]


def _copy_into(func: OpOverload, args: Any, kwargs: dict[str, Any]) -> torch.Tensor:
    """Runs `copy_`, which alone may take its operands from two devices."""
    target, source = args[0], args[1]
    non_blocking = bool(args[2] if len(args) > 2 else kwargs.get("non_blocking", False))
    if target.device == source.device:
        if _is_part(target) and isinstance(source, SimTensor) and not source._buffer.coming:
            return _copy_within(func, source, target)
        result: torch.Tensor = compute(func, args, kwargs)
        return result
    _order(func, source, target, target.numel() * target.element_size(), non_blocking)
    if not (non_blocking and _reads_late(source, target)):
        _inside(target).copy_(_inside(source))
    _arrive(source, target, non_blocking)
    return target  # type: ignore[no-any-return]


def _copy_within(func: OpOverload, source: SimTensor, target: SimTensor) -> SimTensor:
    """Copies into a part of a buffer of the same device: what else lies in the buffer may be on its way meanwhile."""
    stream = current_stream(target.device)
    stream.launch()
    target._buffer.device.count_op()
    source._buffer.read(stream, func)
    target._buffer.write(stream, func, region_of(target._inner))
    target._inner.copy_(source._inner)
    return target


def _is_part(target: torch.Tensor) -> bool:
    """Whether a tensor has less than all of its memory."""
    inside = _inside(target)
    return not inside.numel() or inside.numel() * inside.element_size() < inside.untyped_storage().nbytes()


def _copy_from(func: OpOverload, args: Any, kwargs: dict[str, Any]) -> torch.Tensor:
    return _copy_into(func, (args[1], args[0], *args[2:]), kwargs)


def _convert(func: OpOverload, args: Any, kwargs: dict[str, Any]) -> torch.Tensor:
    """Runs `_to_copy`, to the same device or to another one."""
    source, device = args[0], kwargs.get("device")
    if device is None or device == source.device:
        result: torch.Tensor = compute(func, args, kwargs)
        return result
    if device.type == "sim":
        device_of(device).require(source.numel() * (kwargs.get("dtype") or source.dtype).itemsize)
    if isinstance(source, SimTensor) and source._buffer.coming:
        source._buffer.settle()
    copied = func(_inside(source), **{**kwargs, "device": CPU, "non_blocking": False, "pin_memory": None})
    target = wrap(copied, device_of(device)) if device.type == "sim" else copied.to(device)
    non_blocking = bool(kwargs.get("non_blocking"))
    _order(func, source, target, copied.numel() * copied.element_size(), non_blocking)
    _arrive(source, target, non_blocking)
    return target


def host_view(target: SimTensor) -> torch.Tensor:
    """Returns the CPU tensor inside, for the host to fill: in order and in count it is one copy from the host."""
    stream = current_stream(target.device)
    device_of(target.device).count(bytes_in=target.numel() * target.element_size())
    stream.launch()
    target._buffer.write(stream, "a read of a file")
    stream.synchronize()
    return target._inner


def _order(func: OpOverload, source: torch.Tensor, target: torch.Tensor, size: int, non_blocking: bool) -> None:
    """Puts a copy on its stream, checks that both sides are waited for, and counts its bytes."""
    stream = current_stream((source if isinstance(source, SimTensor) else target).device)
    _count(source, target, size)
    meets = isinstance(source, SimTensor) and isinstance(target, SimTensor)
    if meets:
        stream.wait_stream(current_stream(target.device))
    stream.launch()
    if meets:  # before the copy is noted: an interrupt between the two would leave memory that it still uses
        current_stream(target.device).wait_stream(stream)
    _read(func, source, stream)
    if isinstance(target, SimTensor):
        late = non_blocking and _reads_late(source, target)
        target._buffer.write(stream, func, region_of(target._inner) if _is_part(target) else None, late)
    if not meets and not non_blocking:
        stream.synchronize()


def _read(func: OpOverload, source: torch.Tensor, stream: Stream) -> None:
    if isinstance(source, SimTensor):
        source._buffer.read(stream, func)
        return
    storage = source.untyped_storage()._cdata
    if HOST.filling(storage):
        HOST.deliver(stream.everything())
    for one in HOST.filling(storage):
        raise RaceError(
            f"{func} on {stream} of {stream.device} reads host memory that a copy on {one.stream} of "
            f"{one.stream.device} has not filled yet: let {stream} wait for {one.stream}"
        )


def _count(source: torch.Tensor, target: torch.Tensor, size: int) -> None:
    if isinstance(source, SimTensor):
        source._buffer.device.count(bytes_out=size)
    if isinstance(target, SimTensor):
        target._buffer.device.count(bytes_in=size)


def _arrive(source: torch.Tensor, target: torch.Tensor, non_blocking: bool) -> None:
    """Damages what crossed a broken link, and holds back what the host has not waited for."""
    if isinstance(target, SimTensor):
        corrupt = _broken.get((source.device.index, target.device.index)) if isinstance(source, SimTensor) else None
        if corrupt:
            corrupt(target._inner)
        if non_blocking and _reads_late(source, target):
            inner, stream = target._inner, current_stream(target.device)
            target._buffer.expect(Delivery(stream, None, lambda: inner.copy_(source)))
        return
    if non_blocking:
        _hold_back(target, current_stream(source.device))


def _hold_back(target: torch.Tensor, stream: Stream) -> None:
    value = target.clone()
    target.copy_(torch.full((target.element_size(),), 255, dtype=torch.uint8).view(target.dtype)[0])
    HOST.expect(Delivery(stream, target.untyped_storage()._cdata, lambda: target.copy_(value)))


def empty_pinned(size: Sequence[int], stride: Sequence[int], dtype: torch.dtype) -> torch.Tensor:
    """Makes a CPU tensor in memory that copies to and from simulated devices treat as pinned."""
    made = torch.empty_strided(size, stride, dtype=dtype)
    for address in [address for address, (_, storage) in list(_pinned.items()) if storage.expired()]:
        _pinned.pop(address, None)
    storage = made.untyped_storage()
    memory = range(storage.data_ptr(), storage.data_ptr() + storage.nbytes())
    _pinned[storage._cdata] = memory, StorageWeakRef(storage)
    return made


def is_pinned(tensor: torch.Tensor) -> bool:
    """Says whether a CPU tensor lies in memory that `empty_pinned` made, by its address, as CUDA does."""
    if tensor.untyped_storage()._cdata in _pinned:
        return True
    address = tensor.data_ptr()
    return any(address in memory and not storage.expired() for memory, storage in list(_pinned.values()))


_pinned: dict[int, tuple[range, StorageWeakRef]] = {}
"""Addresses of memory by the address of its storage; the weak reference keeps the latter from being used again."""


def _reads_late(source: torch.Tensor, target: torch.Tensor) -> bool:
    return isinstance(target, SimTensor) and not isinstance(source, SimTensor) and is_pinned(source)


def _inside(tensor: torch.Tensor) -> torch.Tensor:
    return tensor._inner if isinstance(tensor, SimTensor) else tensor


def install() -> None:
    """Tells the dispatcher which ops may cross devices."""
    HANDLERS[aten.copy_.default] = _copy_into
    HANDLERS[aten._copy_from.default] = _copy_from
    HANDLERS[aten._copy_from_and_resize.default] = _copy_from
    HANDLERS[aten._to_copy.default] = _convert
