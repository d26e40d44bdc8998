"""Copies between devices that overlap with computing, where the devices have streams, and arrive intact.

Every byte that goes from one accelerator to another goes through `start_copy` or `start_copies`, and weights through
`moved`.

A copy keeps the exact strides of the value, since the same strides mean the same kernels and so the same bits. It
runs on side streams of both devices, one for each peer and direction, so that no link waits for another: these wait
for what has been launched before, and whoever uses the result waits for them (`Arrival.wait`). Some boards damage
direct copies between two devices. So the first copy between a pair is preceded by a self-test, and a pair that fails
it copies through host memory from then on.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Iterable, Sequence
from itertools import zip_longest
from typing import Protocol

import torch

from ...compiler.ir.value import lies_together
from .accelerator import Accelerator, Event, accelerator_of
from .fork import renew_after_fork
from .wrapped import is_wrapped, rewrapped

logger = logging.getLogger(__name__)


class Arrival:
    """A value on its way to a device.

    Args:
        value: the value, whose bytes may not be there yet.
        there: the device that it arrives on.
        done: the event to wait for, or None when there is nothing to wait for.
        place: memory on the device that it belongs into, if it is on its way to other memory.
    """

    __slots__ = ("_place", "_there", "_value", "_waited", "done")

    def __init__(
        self, value: torch.Tensor, there: Accelerator, done: Event = None, place: torch.Tensor | None = None
    ) -> None:
        self._value = value
        self._there = there
        self.done = done
        self._place = place
        self._waited = done is None

    def wait(self) -> torch.Tensor:
        """Returns the value, to be used on the device's current stream."""
        if not self._waited:
            stream = self._there.current_stream()
            self._there.wait(stream, self.done)
            self._there.keep(self._value, stream)
            self._waited = True
        if self._place is not None:
            self._value, self._place = fill(self._place, self._value), None
        return self._value

    def settle(self) -> None:
        """Blocks the host until the copy has read the value."""
        if self.done is not None:
            self.done.synchronize()


class _Awaited(Protocol):
    done: Event

    def wait(self) -> torch.Tensor: ...


class Arrivals:
    """Boxes of a value on their way to a device, each by itself: ``done`` is the event of the last."""

    __slots__ = ("_coming", "done")

    def __init__(self, coming: Sequence[_Awaited]) -> None:
        self._coming = coming
        self.done = coming[-1].done

    def wait(self) -> torch.Tensor:
        """Has the device's current stream wait for all of them; returns the last."""
        return [one.wait() for one in self._coming][-1]


def fill(place: torch.Tensor, part: torch.Tensor) -> torch.Tensor:
    """Copies a part into its place in a whole; raises ValueError where it has other sizes or another dtype."""
    _check_place(place, part)
    return place.copy_(part)


def _check_place(place: torch.Tensor, part: torch.Tensor) -> None:
    if place.shape != part.shape or place.dtype != part.dtype:
        raise ValueError(
            f"a part of {list(part.shape)} in {part.dtype} does not fit into {list(place.shape)} in {place.dtype}"
        )


def _lie_alike(part: torch.Tensor, place: torch.Tensor) -> bool:
    """Whether a part is copied to its place as it lies, which neither device takes memory for."""
    return part.is_contiguous() or lies_together(part.shape, part.stride(), place.stride())


def fence(done: Event, source: torch.device) -> None:
    """Lets a device that sent a value go on only when the copy, whose event is given, has read it."""
    here = accelerator_of(source)
    here.wait(here.current_stream(), done)


def start_copy(value: torch.Tensor, target: torch.device, into: torch.Tensor | None = None) -> Arrival:
    """Starts to copy a value to a device, with its size and strides; what is there already is not copied.

    It lands in memory of its own, or ``into`` a part of what is there: at once, or when it is waited for, if that part
    is in host memory, where a copy that is not dense would block the host, or the value does not lie as its place does
    and would be gathered in host memory on its way. The value may be freed at once, and so may what it lands in: memory
    on a device is used again when the copy is done. Pinned host memory is read until `Arrival.settle` returns.
    """
    here, there = accelerator_of(value.device), accelerator_of(target)
    if value.device == target:
        return Arrival(value, there)
    if into is not None:
        _check_place(into, value)
    if into is not None and (there.is_host or not _lie_alike(value, into)):
        coming = start_copy(value, target)
        return Arrival(coming._value, there, coming.done, into)
    if here.probe_bytes and there.probe_bytes and not copies_arrive(here, there):
        return _bounce(value, here, there, into)
    return _send([value], here, there, into=[] if into is None else [into])


def start_copies(
    boxes: Sequence[torch.Tensor], target: torch.device, places: Sequence[torch.Tensor]
) -> Arrival | Arrivals:
    """Starts to copy boxes of a value into their places in memory that is there; see `start_copy`.

    Boxes that can land at once, as they lie, follow each other on the side streams, and one event tells of all: what is
    awaited and recorded for a copy takes longer than a copy of few bytes.
    """
    here, there = accelerator_of(boxes[0].device), accelerator_of(target)
    for box, place in zip(boxes, places, strict=True):
        _check_place(place, box)
    lands = boxes[0].device != target and not there.is_host and all(map(_lie_alike, boxes, places))
    if not lands or (here.probe_bytes and there.probe_bytes and not copies_arrive(here, there)):
        return Arrivals([start_copy(box, target, place) for box, place in zip(boxes, places, strict=True)])
    return _send(boxes, here, there, into=places)


def start_snapshot(value: torch.Tensor, target: torch.device) -> Arrival:
    """Starts to copy a value to a device, also if it is there, with its size and strides; it may be written at once.

    What is on the current stream of its device waits until the copy has read it; the host waits for a copy from it.
    """
    here = accelerator_of(value.device)
    if value.device != target:
        coming = start_copy(value, target)
        coming.settle() if here.is_host else fence(coming.done, value.device)
        return coming
    copied = _copy(value, here, here)
    return Arrival(copied, here, here.record(here.current_stream()))


def moved(tensor: torch.Tensor, device: torch.device) -> torch.Tensor:
    """A tensor on a device, to be used on the current stream: detached, or itself where it is there already.

    What comes from pinned host memory is on its way when this returns. What goes to the host is there, and in memory
    that is not pinned: it may stay for long.
    """
    if tensor.device == device:
        return tensor
    here, there = accelerator_of(tensor.device), accelerator_of(device)
    if here.is_host or there.is_host:
        return there.source(tensor.detach()).to(device, non_blocking=there.has_streams)
    if is_wrapped(tensor):
        return rewrapped(tensor, lambda inside: moved(inside, device))
    return start_copy(tensor.detach(), device).wait()


def land(tensor: torch.Tensor, place: torch.Tensor) -> None:
    """Fills memory on a device with a tensor of its sizes, whose dtype may be another.

    What comes from pinned host memory is on its way on the device's current stream when this returns.
    """
    here, there = accelerator_of(tensor.device), accelerator_of(place.device)
    if here.is_host or there.is_host or tensor.device == place.device:
        place.copy_(there.source(tensor.detach()), non_blocking=there.has_streams and here.is_host)
    else:
        start_copy(tensor.detach(), place.device, place).wait()


def home_of(tensors: Iterable[torch.Tensor]) -> torch.device | None:
    """Where the results of a call belong: with its first tensor that is on an accelerator, or else with its first.

    What a model takes from the host too, as positions or a timestep, does not draw its results there.
    """
    devices = list(dict.fromkeys(tensor.device for tensor in tensors))
    return next((one for one in devices if not accelerator_of(one).is_host), next(iter(devices), None))


def handed(value: torch.Tensor, device: torch.device) -> torch.Tensor:
    """An argument or a result on a device: no memory of a caller is read any more, and none is pinned.

    A strided value has its strides on an accelerator; to the host it goes as `moved` takes it.
    """
    if value.device == device or accelerator_of(device).is_host:
        return moved(value, device)
    coming = start_copy(value, device)
    if accelerator_of(value.device).is_host:
        coming.settle()
    return coming.wait()


def copies_arrive(here: Accelerator, there: Accelerator) -> bool:
    """Says whether direct copies between two devices arrive intact; the first time for a pair, it tries."""
    pair = here.device, there.device
    with _lock.held:
        if pair not in _intact:
            _intact[pair] = _probe(here, there)
        return _intact[pair]


def forget_self_tests() -> None:
    """Lets the next copy between each pair of devices be preceded by a self-test again."""
    with _lock.held:
        _intact.clear()


_intact: dict[tuple[torch.device, torch.device], bool] = {}


class _Lock:
    """Held during a self-test; a process that was forked has one of its own."""

    def __init__(self) -> None:
        self.renew()
        renew_after_fork(self)

    def renew(self) -> None:
        self.held = threading.Lock()


_lock = _Lock()


def _send(
    values: Sequence[torch.Tensor],
    here: Accelerator,
    there: Accelerator,
    before: Event = None,
    into: Sequence[torch.Tensor] = (),
) -> Arrival:
    """Copies on the side streams, after what was launched on the source's current stream and after `before`.

    A value alone goes into memory of its own, unless it has a place; several have places in one memory. That may have
    been another value's until now: the copies are after the target's current stream too.
    """
    side_here, side_there = here.side_stream(("to", there.device)), there.side_stream(("from", here.device))
    from_now, to_now = here.current_stream(), there.current_stream()
    here.wait(side_here, here.record(from_now))
    there.wait(side_there, before)
    if into:
        there.wait(side_there, there.record(to_now))
    try:
        with here.use(side_here), there.use(side_there):
            for value in values:
                here.keep(value, side_here)  # before a copy is launched: an interrupt behind it frees both
            for place in into:
                there.keep(place, side_there)
            arrived = [_copied(*pair, here, there) for pair in zip_longest(values, into)]
            done = there.record(side_there) if there.has_streams else here.record(side_here)
    except BaseException:  # an interrupt may come within what leaves a stream, which all that follows would use then
        here.choose(from_now)
        there.choose(to_now)
        raise
    return Arrival(arrived[0], there, done)


def _copied(value: torch.Tensor, into: torch.Tensor | None, here: Accelerator, there: Accelerator) -> torch.Tensor:
    """Copies a value into memory that is there, or of its own."""
    if into is None:
        return _copy(value, here, there)
    return into.copy_(value, non_blocking=_may_lag(here, there))


def _bounce(value: torch.Tensor, here: Accelerator, there: Accelerator, into: torch.Tensor | None = None) -> Arrival:
    """Copies through host memory without blocking the host."""
    host = accelerator_of(torch.device("cpu"))
    halfway = _send([value], here, host)
    return _send([halfway._value], host, there, halfway.done, [] if into is None else [into])


def _copy(value: torch.Tensor, here: Accelerator, there: Accelerator) -> torch.Tensor:
    """Copies a value with its strides; what lies behind several indices is sent once."""
    size, stride = value.size(), value.stride()
    sent = _without_repeats(value, size, stride)
    if there.is_host:
        arrived = here.empty_on_host(sent.size(), sent.stride(), value.dtype)
    else:
        arrived = torch.empty_strided(sent.size(), sent.stride(), dtype=value.dtype, device=there.device)
    arrived.copy_(sent, non_blocking=_may_lag(here, there))
    return arrived if sent is value else arrived.as_strided(size, stride, 0)


def _may_lag(here: Accelerator, there: Accelerator) -> bool:
    """Whether a copy may go on behind the host: only where a stream tells when it has read its source."""
    return here.has_streams or there.has_streams


def _without_repeats(value: torch.Tensor, size: Sequence[int], stride: Sequence[int]) -> torch.Tensor:
    """Returns a view of all elements in which none of them occurs twice."""
    if not _repeats(size, stride):
        return value
    once = [1 if step == 0 else count for count, step in zip(size, stride, strict=True)]
    if not _repeats(once, stride):
        return value.as_strided(once, stride)
    reach = 1 + sum((count - 1) * step for count, step in zip(once, stride, strict=True))
    return value.as_strided((reach,), (1,))


def _repeats(size: Sequence[int], stride: Sequence[int]) -> bool:
    reach = 0
    for step, count in sorted((step, count) for count, step in zip(size, stride, strict=True) if count > 1):
        if step <= reach:
            return 0 not in size
        reach += (count - 1) * step
    return False


def _probe(here: Accelerator, there: Accelerator) -> bool:
    """Sends patterns from one device to the other and compares what comes back with what was sent."""
    if here.device.type != there.device.type:
        logger.warning("%s and %s have no direct link: copies go through host memory", here.device, there.device)
        return False
    with here.uncounted(), there.uncounted():
        wrong = sum(_bytes_lost(pattern, here, there) for pattern in _patterns(here.probe_bytes))
    if wrong:
        logger.warning(
            "%d of %d bytes of a self-test were wrong after a direct copy from %s to %s: copies between them go "
            "through host memory from now on, which takes about twice as long",
            wrong, 4 * here.probe_bytes, here.device, there.device,
        )  # fmt: skip
    return not wrong


def _patterns(count: int) -> list[torch.Tensor]:
    ramp = torch.arange(count, dtype=torch.int64).mul_(167).remainder_(251).to(torch.uint8)
    return [torch.full_like(ramp, 255), ramp, torch.zeros_like(ramp), ramp.flip(0)]


def _bytes_lost(pattern: torch.Tensor, here: Accelerator, there: Accelerator) -> int:
    sent = pattern.to(here.device)
    back = _send([sent], here, there).wait().cpu()
    return int((back != pattern).sum())
