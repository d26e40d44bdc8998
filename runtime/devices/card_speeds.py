"""What the cards of this machine reach, measured at their first use in about two seconds each, and kept in a file.

Cards of one name are measured once. What cannot be measured (a card that is full, a driver that raises) is predicted
from published figures. ``DOVETAIL_MEASURE=0`` has all cards be.
"""

from __future__ import annotations

import contextlib
import functools
import logging
import math
import os
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import replace
from typing import TypeVar

import torch

from ...compiler.devices.cards import card_of
from ...compiler.devices.device import Device
from ...compiler.devices.measured_speeds import best_of, keep_speed, measured_before, speeds_file
from ...compiler.devices.memory import Memory
from ...compiler.devices.rig import Rig
from ...compiler.devices.speeds import Speed
from .accelerator import Accelerator, accelerator_of
from .transfers import land, moved

logger = logging.getLogger(__name__)

T = TypeVar("T")

_DTYPES = ("float32", "bfloat16", "float16")
_HALVES = _DTYPES[1:]
_SIZES = (256, 512, 1024, 2048, 4096)  # the first one that keeps a device busy for some milliseconds counts
_ENOUGH = 2e-3
_REPEATS = 8
_MIB = 2**20
_LARGE, _LEAST_FREE = 64 * _MIB, 1024 * _MIB
_ERRORS = (RuntimeError, TypeError, NotImplementedError, AttributeError)


def measured_cards(rig: Rig) -> dict[Device, Speed]:
    """The speeds of a rig's cards that are here, measured now where that was not done before and somebody named them.

    Simulated devices are no cards, and the host is measured elsewhere.
    """
    if not rig.present or os.environ.get("DOVETAIL_MEASURE", "1") in ("0", "no", "off", "false"):
        return {}
    cards = {device: memory for device, memory in rig.memory.items() if not (device.is_host or device.is_simulated)}
    labels = labels_here() if cards else {}
    here = {device: label for device, memory in cards.items() if _is_one(memory.label, label := labels.get(device, ""))}
    asked = {device for device in here if _is_asked(cards[device])}
    found: dict[Device, Speed] = {}
    for device, label in here.items():
        twins = sorted((one for one in here if here[one] == label and one != device), key=lambda one: one not in asked)
        speed = _of_card(device, label, device in asked)
        if speed is not None:
            found[device] = replace(speed, peer=_peer_of(device, twins[0], label, asked)) if twins else speed
    return found


@functools.cache
def labels_here() -> Mapping[Device, str]:
    """What its maker calls each card of this machine, which is asked once."""
    return {device: memory.label for device, memory in Rig.detect(measured=()).memory.items()}


def _is_asked(memory: Memory) -> bool:
    """Whether a card may be measured: it was named, so that what is free of it is known, and enough is."""
    return _LEAST_FREE <= memory.free < memory.total  # all of a card that nobody named counts as free


def _is_one(typed: str, found: str) -> bool:
    """Whether a card of a rig is the one that is here: a rig may be of other cards, which are not measured."""
    card = card_of(typed)
    return bool(found) and (typed == found or (card is not None and card == card_of(found)))


def key_of(label: str, pair: tuple[Device, Device] | None = None) -> str:
    """What a card's speed is kept under, or that of copies between two; with another PyTorch it is measured again."""
    cards = f"{label}, {pair[0]} and {pair[1]}" if pair else label
    return f"{cards}, torch {torch.__version__}, with convolutions"


def forget() -> None:
    """Has the file be read again, after something was written into it."""
    _of_card.cache_clear()
    _between.cache_clear()


@functools.cache
def _of_card(device: Device, label: str, has_room: bool) -> Speed | None:
    known = measured_before(key_of(label))
    if known is None and has_room:
        known = _tried(lambda: measure_card(device.torch), (device,), label)
        if known is not None:
            keep_speed(speeds_file(), key_of(label), known)
    return None if known is None else replace(known, label=label, peer=0.0)


def _peer_of(device: Device, twin: Device, label: str, asked: Collection[Device]) -> float:
    """Bytes a second of a copy between two cards, whichever is first, measured where both may be."""
    first, second = sorted((device, twin), key=lambda one: one.index)
    return _between(first, second, label, first in asked and second in asked)


@functools.cache
def _between(first: Device, second: Device, label: str, has_room: bool) -> float:
    known = measured_before(key_of(label, (first, second)))
    card = _of_card(first, label, has_room)
    if known is not None or card is None or not has_room:
        return (known.peer or 0.0) if known else 0.0
    rate = _tried(lambda: measure_peer(first.torch, second.torch), (first, second), label)
    if rate is not None:
        keep_speed(speeds_file(), key_of(label, (first, second)), replace(card, peer=rate))
    return rate or 0.0


def _tried(measure: Callable[[], T], devices: tuple[Device, ...], label: str) -> T | None:
    """What a measurement gives, or None where it cannot be made; no memory of it stays on the devices."""
    try:
        return measure()
    except _ERRORS as error:
        logger.debug("%s (%s) cannot be measured: %s", " and ".join(map(str, devices)), label, str(error))
        return None
    finally:
        for one in devices:
            with contextlib.suppress(*_ERRORS):
                accelerator_of(one.torch).empty_cache()


def measure_card(device: torch.device) -> Speed:
    """Times products, attention and convolutions, an addition, copies and the start of an operation on a device."""
    there = accelerator_of(device)
    with torch.inference_mode(), there.uncounted():
        flops = dict(_by_dtype(lambda dtype: _products(there, dtype), _DTYPES))
        attention = dict(_by_dtype(lambda dtype: _attention(there, dtype), _HALVES))
        convolution = dict(_by_dtype(lambda dtype: _convolution(there, dtype), _HALVES))
        bandwidth, link = _bandwidth(there), _link(there)
        return Speed(flops, bandwidth, link, _launch(there), "measured", attention, 0.0, convolution=convolution)


def measure_peer(device: torch.device, twin: torch.device) -> float:
    """Bytes a second of a copy from a device to another one of the model."""
    here, there = accelerator_of(device), accelerator_of(twin)
    with torch.inference_mode(), here.uncounted(), there.uncounted():
        return _peer(here, there)


def _by_dtype(rate: Callable[[torch.dtype], float], names: tuple[str, ...]) -> Iterator[tuple[str, float]]:
    """The rate in each dtype that the device computes in; it raises for float32, which all have."""
    for name in names:
        with contextlib.suppress(*(() if name == "float32" else _ERRORS)):
            yield name, rate(getattr(torch, name))


def _grown(work: Callable[[int], Callable[[], object]], there: Accelerator, flops: Callable[[int], float]) -> float:
    """Operations a second of the first size that takes some milliseconds, or of the largest one; the most so far."""
    return max(_by_size(work, there, flops))


def _by_size(
    work: Callable[[int], Callable[[], object]], there: Accelerator, flops: Callable[[int], float]
) -> Iterator[float]:
    """Operations a second of each size, up to the first one that takes some milliseconds."""
    for size in _SIZES:
        once = work(size)
        took = best_of(once, 1, there.synchronize)
        if took < _ENOUGH:  # many at once, as one is over before the host has seen it
            took = best_of(lambda: [once() for _ in range(_REPEATS)], 2, there.synchronize) / _REPEATS  # noqa: B023
        yield flops(size) / took
        if took >= _ENOUGH:
            return


def _products(there: Accelerator, dtype: torch.dtype) -> float:
    def work(size: int) -> Callable[[], object]:
        a, b = (torch.randn(size, size, dtype=dtype, device=there.device) for _ in "ab")  # ones would be quicker
        return lambda: a @ b

    return _grown(work, there, lambda size: 2.0 * size**3)


def _attention(there: Accelerator, dtype: torch.dtype) -> float:
    heads, width = 16, 64

    def work(size: int) -> Callable[[], object]:
        q, k, v = (torch.randn(1, heads, size, width, dtype=dtype, device=there.device) for _ in "qkv")
        return lambda: torch.nn.functional.scaled_dot_product_attention(q, k, v)

    return _grown(work, there, lambda size: 4.0 * heads * width * size**2)


def _convolution(there: Accelerator, dtype: torch.dtype) -> float:
    """Of 256 channels, up to 512², which no cache holds: cards reach a fraction there of what products reach."""
    channels, part = 256, 8

    def work(size: int) -> Callable[[], object]:
        picture = torch.randn(1, channels, size // part, size // part, dtype=dtype, device=there.device)
        weight = torch.randn(channels, channels, 3, 3, dtype=dtype, device=there.device)
        return lambda: torch.nn.functional.conv2d(picture, weight, weight[:, 0, 0, 0], padding=1)

    *_, last = _by_size(work, there, lambda size: 2.0 * 9 * channels**2 * (size // part) ** 2)
    return last


def _bandwidth(there: Accelerator) -> float:
    large, out = (torch.ones(_LARGE // 4, device=there.device) for _ in "ab")
    return 3 * _LARGE / best_of(lambda: torch.add(large, large, out=out), 3, there.synchronize)


def _link(there: Accelerator) -> float:
    """Bytes a second of a copy from the host's memory, pinned where that can be."""
    source = there.empty_on_host((_LARGE,), (1,), torch.uint8)
    target = torch.empty(_LARGE, dtype=torch.uint8, device=there.device)
    return _LARGE / best_of(lambda: land(source, target), 3, there.synchronize)


def _peer(here: Accelerator, there: Accelerator) -> float:
    """Bytes a second of a copy to another device of the model; nothing where it goes through the host's memory."""
    source = torch.ones(_LARGE, dtype=torch.uint8, device=here.device)

    def wait() -> None:
        here.synchronize()
        there.synchronize()

    return _LARGE / best_of(lambda: moved(source, there.device), 3, wait)


def _launch(there: Accelerator) -> float:
    small = torch.ones(1, device=there.device)
    return best_of(lambda: [small + small for _ in range(100)], 3, there.synchronize) / 100


def scaled(speed: Speed, computing: float = 1.0, loading: float = 1.0) -> Speed:
    """A speed that computes and loads so many times as long as it was taken to."""

    def slower(rates: Mapping[str, float]) -> dict[str, float]:
        return {name: rate / computing for name, rate in rates.items()}

    if not all(math.isfinite(one) and one > 0 for one in (computing, loading)):
        raise ValueError(f"a speed cannot be {computing:g} and {loading:g} times another")
    return replace(
        speed, flops=slower(speed.flops), attention=slower(speed.attention), convolution=slower(speed.convolution),
        bandwidth=speed.bandwidth / computing, launch=speed.launch * computing, link=speed.link / loading, spread=0.0,
    )  # fmt: skip
