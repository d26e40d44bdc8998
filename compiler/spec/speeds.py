"""How fast a device computes, reads its memory, and is reached from the host: what predictions of time rest on.

A card that PyTorch names, or that a rig names (`cuda0=24GiB@RTX 3090`), has its maker's figures; an unnamed one of a
typed rig those of a common card with as much memory and a slow slot. So has a simulated device: it rehearses such a
card. The host is measured once where it is here (`measured_host`), and has stated figures on a rig that is elsewhere.

Makers publish what nothing exceeds. What large operations reach is a part of that, and is what a `Speed` says.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from .cards import Card, card_of, card_of_size
from .devices import Device, Memory, Rig

TERA, GIGA = 1e12, 1e9
REACHED = {"flops": 0.6, "bandwidth": 0.8, "link": 0.76}
"""The part of published figures that large matrix products, element-wise operations and pinned copies reach."""

DISK = 2.0 * GIGA
"""Bytes a second from a solid-state disk, where it was not measured."""

_SLOW_LINK = 12.0 * GIGA
_LAUNCH = 6e-6
_HALVES = ("float16", "bfloat16")


@dataclass(frozen=True)
class Speed:
    """What large operations reach on a device: operations a second by dtype, bytes a second, seconds to start one.

    ``flops`` has float32 at least; a dtype that it does not name computes as float32 does. ``link`` is the way from
    the host's memory, in one direction; that of the host to itself is a copy within its memory.
    """

    flops: Mapping[str, float] = field(hash=False)
    bandwidth: float
    link: float
    launch: float = _LAUNCH
    label: str = ""

    def seconds(self, flops: float, nbytes: float, dtype: str) -> float:
        """The time of one operation: of its arithmetic or of its memory traffic, whichever is longer, and its start."""
        return max(flops / self.flops.get(dtype, self.flops["float32"]), nbytes / self.bandwidth) + self.launch


@dataclass(frozen=True)
class Speeds:
    """The speeds of all devices of a rig, and of the disk."""

    devices: Mapping[Device, Speed] = field(hash=False)
    disk: float = DISK

    def __getitem__(self, device: Device) -> Speed:
        return self.devices[device]

    def loading(self, device: Device, from_disk: bool) -> float:
        """Bytes a second at which weights come to a device from the host's memory, or from the disk."""
        return min(self.disk, self[device].link) if from_disk else self[device].link

    def crossing(self, source: Device, target: Device) -> float:
        """Bytes a second from one device to another: of the slower link; through the host's memory."""
        ends = [self[one].link for one in (source, target) if not one.is_host]
        return min(ends, default=self[source].link)


HOST_SPEED = Speed({"float32": 0.5 * TERA, "bfloat16": 0.5 * TERA, "float16": 0.1 * TERA}, 40 * GIGA, 10 * GIGA, 1e-5)
"""A desktop processor of eight cores with two channels of memory, for the host of a rig that is not this machine."""


def speeds_of(rig: Rig, host: Speed | None = None, disk: float = DISK) -> Speeds:
    """The speeds of a rig's devices; ``host`` is what was measured here, and counts where the rig is here."""
    own = host if host is not None and rig.present else HOST_SPEED
    named = {device: _speed(device, memory, own) for device, memory in rig.memory.items()}
    return Speeds({rig.host: own, **named}, disk)


def _speed(device: Device, memory: Memory, host: Speed) -> Speed:
    if device.is_host:
        return host
    card = card_of(memory.label)
    if card is not None:
        return of_card(card)
    guessed = of_card(card_of_size(memory.total / 2**30))
    return replace(guessed, link=min(guessed.link, _SLOW_LINK), label=f"like {guessed.label}")


def of_card(card: Card) -> Speed:
    """What is reached of a card's published figures."""
    half = dict.fromkeys(_HALVES, card.half) if card.bf16 else {"float16": card.half}
    flops = {"float32": card.single, **half}
    return Speed(
        {dtype: value * TERA * REACHED["flops"] for dtype, value in flops.items()},
        card.bandwidth * GIGA * REACHED["bandwidth"],
        card.link * GIGA * REACHED["link"],
        label=card.name,
    )
