"""How fast a device computes, reads its memory, and is reached from the host: what predictions of time rest on.

A card that PyTorch names, or that a rig names (`cuda0=24GiB@RTX 3090`), has its maker's figures; an unnamed one of a
typed rig those of a common card with as much memory and a slow slot. So has a simulated device: it rehearses such a
card. The host and the cards that are here are measured once (`measured_host`, `measured_cards`); the host has stated
figures on a rig that is elsewhere.

Makers publish what nothing exceeds. What programs reach is a part of that, and is what a `Speed` says: two efficiencies
a card and dtype (products and convolutions; attention), one rate a link, and the seconds that starting an operation
takes. A time that rests on figures is right within `SPREAD` of it at best, and is said as a range.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from .cards import SINGLE, Card, card_of, card_of_size, peer_of
from .device import Device
from .links import Pair, Processes, Way
from .memory import Memory
from .rates import Rates
from .rig import Rig

TERA, GIGA = 1e12, 1e9
REACHED = {"bandwidth": 0.8, "cached": 1.6, "link": 0.76}
"""The part of published figures that element-wise operations and copies reach, on every card.

A link's is 24 of 31.5 GB/s through a slot of PCIe 4.0, and 342 of 450 by NVLink of an H100, where 0.87 of it is the
most that was seen of very large copies (NVIDIA/nccl#1264). `benchmarks.prediction` has rows of both, and it was fitted
on none.

With a large cache element-wise operations exceed the memory's bandwidth: twice the 0.8 of other cards, by transformers
on an L40S and on an RTX 4090, where 0.8 would ask for more arithmetic than the cards have.
"""

SPREAD = 0.25
"""The part of a predicted time that it may be off by where the device was not measured."""

DISK = 2.0 * GIGA
"""Bytes a second from a solid-state disk, where it was not measured."""

LATENCY = 3e-5
"""The seconds that a copy between devices takes beside its bytes: it is started, and the reader is told of its end.

Exchanges of few bytes take 8 to 14 µs by NCCL on cards in slots (flashinfer-ai/flashinfer#5023), and what Python does
comes on top. It is 1 to 5 % of the time of a large transformer on L20: at 10 and at 40 µs as many rows of
`benchmarks.prediction` lie within what is asked, give or take one.
"""

LIKE = "like "
"""What the label of a card begins with that nothing is known of but its memory."""

LAUNCH_ON_HOST = 2.5e-5
"""The least seconds in which an operation is started and ends on the host, where nothing goes on meanwhile."""

_MUCH = 0.6
_SLOW_LINK = 12.0 * GIGA
_LAUNCH = 1.7e-5  # of PyTorch as it is: published steps of a small denoiser ask for 12 to 35 µs on five cards
_HALVES = ("float16", "bfloat16")


@dataclass(frozen=True)
class Speed:
    """What large operations reach on a device: operations a second by dtype, bytes a second, seconds to start one.

    ``flops`` has float32 at least; a dtype that it does not name computes as float32 does. ``attention`` has what
    attention reaches, by dtype, and ``convolution`` what convolutions do, where that differs. ``link`` is the way from
    the host's memory, in one direction; that of the host to itself is a copy within its memory. ``peer`` is the way to
    another device of the same ``label``: 0 where there is none but through the host, None where it is as fast as
    ``link``. ``spread`` is the part of a time that it may be off by, 0 if measured.
    """

    flops: Mapping[str, float] = field(hash=False)
    bandwidth: float
    link: float
    launch: float = _LAUNCH
    label: str = ""
    attention: Mapping[str, float] = field(default_factory=dict, hash=False)
    peer: float | None = None
    spread: float = 0.0
    convolution: Mapping[str, float] = field(default_factory=dict, hash=False)

    def seconds(
        self, flops: float, nbytes: float, dtype: str, attention: bool = False, convolution: bool = False
    ) -> float:
        """The time of one operation: of its arithmetic or of its memory traffic, whichever is longer, and its start."""
        return max(flops / self.rate(dtype, attention, convolution), nbytes / self.bandwidth) + self.launch

    def rate(self, dtype: str, attention: bool = False, convolution: bool = False) -> float:
        """Operations a second in a dtype, of products, of attention or of convolutions."""
        beside = self.attention if attention else self.convolution if convolution else {}
        known = {**self.flops, **beside}
        return known.get(dtype, known["float32"])

    @property
    def lacks_bfloat16(self) -> bool:
        """Whether bfloat16 takes much longer than float16, as where it is computed as float32."""
        return self.rate("bfloat16") < _MUCH * self.rate("float16")


@dataclass(frozen=True)
class Speeds:
    """The speeds of all devices of a rig, of the disk, and of the links that a rig says.

    ``ways`` are the bytes a second between two devices, 0 where that is by the host, ``networks`` those between two
    processes, and ``roots`` names that of each device whose way to the host others share. ``latency`` are the seconds
    that a copy between devices takes beside its bytes.
    """

    devices: Mapping[Device, Speed] = field(hash=False)
    disk: float = DISK
    ways: Mapping[Pair, float] = field(default_factory=dict, hash=False)
    networks: Mapping[Processes, float] = field(default_factory=dict, hash=False)
    roots: Mapping[Device, str] = field(default_factory=dict, hash=False)
    latency: float = LATENCY

    def __getitem__(self, device: Device) -> Speed:
        return self.devices[device]

    def loading(self, device: Device, from_disk: bool) -> float:
        """Bytes a second at which weights come to a device from the host's memory, or from the disk."""
        return min(self.disk, self[device].link) if from_disk else self[device].link

    def crossing(self, source: Device, target: Device) -> float:
        """Bytes a second from one device to another: by their own way, or by the host's memory, there and back."""
        own = self.way(source, target)
        if own:
            return own
        ends = [self[one].link for one in (source, target) if not one.is_host] or [self[source].link]
        network = self.networks.get(frozenset((source.process, target.process)))
        return float(1 / sum(1 / one for one in (*ends, *([network] if network else ()))))

    def way(self, source: Device, target: Device) -> float:
        """Bytes a second from one device to another that do not go by the host; 0 where they do."""
        said = self.ways.get(frozenset((source, target)))
        if said is not None or source.is_host or target.is_host or source.process != target.process:
            return said or 0.0
        one, other = self[source], self[target]
        ways = [end.link if end.peer is None else end.peer for end in (one, other)]
        if not all(ways):
            return 0.0
        return min(ways) if one.label == other.label else min(one.link, other.link)

    def links_of(self, device: Device) -> tuple[object, ...]:
        """What is said of a device's links: its root, and the rates of its ways, in no order."""
        return self.roots.get(device), *sorted(rate for pair, rate in self.ways.items() if device in pair)

    def lanes(self, source: Device, target: Device) -> list[str]:
        """What a copy from one device to another takes of roots that others share, each in its direction.

        A way that is faster than the slots is a bridge, which takes none; through the slots devices of one root reach
        each other below it.
        """
        way, slot = self.way(source, target), min(self[source].link, self[target].link)
        up, down = self.roots.get(source), self.roots.get(target)
        if way > slot or (way and up == down):
            return []
        return [*([f"from {up}"] if up else []), *([f"to {down}"] if down else [])]

    def taken(self, source: Device, target: Device) -> list[str]:
        """All that a copy from one device to another takes, each for its seconds: what it leaves and enters by, roots.

        The host has a slot for each device, and so no way in or out that they share, but for roots.
        """
        out = [] if source.is_host else [f"out of {source}"]
        into = [] if target.is_host else [f"into {target}"]
        return [*out, *into, *self.lanes(source, target)]

    def bringing(self, host: Device, seconds: Mapping[Device, float]) -> float:
        """The seconds of bringing weights from the host's memory to several devices at once.

        ``seconds`` are those of each device alone. Devices of one root take turns on it, and all of them together are
        no quicker than the host reads its memory, where that reads faster than to one of them.
        """
        lanes: defaultdict[object, float] = defaultdict(float)
        for device, own in seconds.items():
            for lane in (device, *self.lanes(host, device)):
                lanes[lane] += own
            lanes[""] += own * self[device].link / max(self[device].link, self[host].bandwidth)
        return max(lanes.values(), default=0.0)

    def at_once(self, host: Device, seconds: Mapping[Device, float]) -> float:
        """How many times as long weights come from the host's memory as to each device alone, as they come to several.

        ``seconds`` are those of each alone. The one to which they come for longest decides, for all of a group wait for
        it.
        """
        longest = max(seconds.values(), default=0.0)
        return self.bringing(host, seconds) / longest if longest else 1.0

    def from_disk_at_once(self, seconds: Mapping[Device, float]) -> float:
        """The same of weights that are read from the one disk."""
        longest = max(seconds.values(), default=0.0)
        reading = sum(own * self.loading(device, True) / self.disk for device, own in seconds.items())
        return max(1.0, reading / longest) if longest else 1.0

    def spread(self, devices: Iterable[Device]) -> float:
        """The part of a time on some devices that it may be off by; 0 where all of them were measured."""
        return max((self[one].spread for one in devices), default=0.0)


HOST_SPEED = Speed(
    {"float32": 0.5 * TERA, "bfloat16": 0.5 * TERA, "float16": 0.1 * TERA},
    40 * GIGA,
    10 * GIGA,
    LAUNCH_ON_HOST,
    spread=SPREAD,
)
"""A desktop processor of eight cores with two channels of memory, for the host of a rig that is not this machine."""


_CHANNEL = 20 * GIGA
"""Bytes a second of a channel of memory, of which a host has one for each card, and two at least."""


def speeds_of(
    rig: Rig, host: Speed | None = None, disk: float = DISK, measured: Mapping[Device, Speed] | None = None
) -> Speeds:
    """The speeds of a rig's devices.

    ``host`` and ``measured`` are what was measured here of the host and of cards, and count where the rig is here.
    """
    own = host if host is not None and rig.present else _host_of(rig)
    known = (measured or {}) if rig.present else {}
    named = {
        device: _by_rates(
            _by_way(known.get(device) or _speed(device, memory, own), memory), rig.links.rates.get(device)
        )
        for device, memory in rig.memory.items()
    }
    links = rig.links
    ways = {pair: _rate(way, [rig[one].label for one in pair]) for pair, way in links.ways.items()}
    networks = {pair: way.rate * GIGA for pair, way in links.networks.items()}
    return Speeds({rig.host: own, **named}, disk, ways, networks, links.roots)


def _host_of(rig: Rig) -> Speed:
    """The host of a rig that is not this machine: boards with more slots have more channels of memory."""
    return replace(HOST_SPEED, bandwidth=max(HOST_SPEED.bandwidth, len(rig.gpus) * _CHANNEL))


def _rate(way: Way, labels: Sequence[str]) -> float:
    """Bytes a second of a way between two cards: what was typed, or what is reached of their makers' figures."""
    return (way.gigabytes(labels) or 0.0) * GIGA * (REACHED["link"] if way.name else 1)


def _by_way(speed: Speed, memory: Memory) -> Speed:
    """A speed with the way to other cards that a rig says, whatever was measured or published."""
    card = card_of(memory.label) if memory.way else None
    rate = peer_of(card, memory.way) if card is not None else None
    return speed if rate is None else replace(speed, peer=rate * GIGA * REACHED["link"])


def _by_rates(speed: Speed, rates: Rates | None) -> Speed:
    """A speed with what a rig says of half precision, in the dtypes that the device has units for."""
    if rates is None:
        return speed
    halves = _HALVES[:1] if speed.lacks_bfloat16 else _HALVES
    products, attention = (dict.fromkeys(halves, one * TERA) for one in (rates.products, rates.attention))
    return replace(
        speed,
        flops={**speed.flops, **products},
        attention={**speed.attention, **attention},
        convolution={**speed.convolution, **products},
    )


def _speed(device: Device, memory: Memory, host: Speed) -> Speed:
    if device.is_host:
        return host
    card = card_of(memory.label)
    if card is not None:
        return of_card(card)
    guessed = of_card(card_of_size(memory.total / 2**30, device.kind if memory.integrated else ""))
    link = guessed.link if memory.integrated else min(guessed.link, _SLOW_LINK)
    return replace(guessed, link=link, peer=0.0, label=LIKE + guessed.label)


def of_card(card: Card) -> Speed:
    """What is reached of a card's published figures."""
    halves = _HALVES if card.bf16 else _HALVES[:1]
    products, attends = card.single * SINGLE.products, card.single * SINGLE.attention
    flops = {"float32": products, **dict.fromkeys(halves, max(products, card.half * card.reached.products))}
    attention = {"float32": attends, **dict.fromkeys(halves, max(attends, card.half * card.reached.attention))}
    return Speed(
        {dtype: value * TERA for dtype, value in flops.items()},
        card.bandwidth * GIGA * REACHED["cached" if card.cached else "bandwidth"],
        card.link * GIGA * REACHED["link"],
        label=card.name,
        attention={dtype: value * TERA for dtype, value in attention.items()},
        peer=card.peer * GIGA * REACHED["link"],
        spread=SPREAD,
    )
