"""How the devices of a rig reach one another: ways of pairs, roots that several share, networks between processes.

In the text of a rig they stand behind its devices, each behind a semicolon: `cuda0-cuda1=NVLink` (or `P2P`, `no P2P`,
or a rate such as `50GB/s`), `cuda0+cuda1@root0` (their ways to the host are one), `r0-r1=10Gbit`. What cards compute a
second stands there too, see `rates`.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from fractions import Fraction
from typing import TypeAlias, TypeVar

from ..spans import Span
from ..units import NUMBER, number_text
from .cards import NVLINK, WAYS, card_of, peer_of, plain_name
from .device import Device, device_in, no_device
from .rates import Rates, rates_in

T = TypeVar("T")

_RATE = re.compile(rf"({NUMBER})\s*([kmgt])(i?)((?-i:B)|bit)(?:/s|ps)?", re.IGNORECASE)
_OF_EITHER = re.compile(rf"{NUMBER}\s*[kmgt]i?b(?:/s|ps)?", re.IGNORECASE)
_LONGEST = 40
_LEAST, _MOST = 1e-6, 10**6
_POWERS = {"k": 1, "m": 2, "g": 3, "t": 4}
_PROCESS = re.compile(r"r([0-9]{1,4})")
_ROOT = re.compile(r"[a-z][a-z0-9_]{0,31}")
_EXAMPLE = "a way such as cuda0-cuda1=NVLink, a root such as cuda0+cuda1@root0, or a network such as r0-r1=10Gbit"
_RATES = "NVLink, P2P, no P2P, or a rate such as 50GB/s or 10Gbit"

Pair: TypeAlias = frozenset[Device]
Processes: TypeAlias = frozenset[int]


@dataclass(frozen=True)
class Way:
    """A way between two devices: one of `WAYS`, or the gigabytes that copies reach in a second in one direction."""

    name: str = ""
    rate: float = 0.0

    def __str__(self) -> str:
        return self.name or f"{number_text(self.rate)}GB/s"

    def gigabytes(self, labels: Sequence[str]) -> float | None:
        """Gigabytes a second between two cards by their makers' figures; 0 by the host, None where it is not known."""
        if not self.name:
            return self.rate
        if self.name == "no P2P":
            return 0.0
        cards = [card for card in map(card_of, labels) if card is not None]
        rates = [rate for card in cards if (rate := peer_of(card, self.name)) is not None]
        is_known = len(rates) == len(labels) and (self.name == "P2P" or len(set(cards)) == 1)
        return min(rates) if is_known else None


@dataclass(frozen=True)
class Links:
    """The ways of pairs of devices, the networks between two processes, and the root of each device that shares one.

    ``rates`` are what a rig says that devices compute.
    """

    ways: Mapping[Pair, Way] = field(default_factory=dict, hash=False)
    networks: Mapping[Processes, Way] = field(default_factory=dict, hash=False)
    roots: Mapping[Device, str] = field(default_factory=dict, hash=False)
    rates: Mapping[Device, Rates] = field(default_factory=dict, hash=False)

    def __bool__(self) -> bool:
        return bool(self.ways or self.networks or self.roots or self.rates)

    def only(self, devices: Collection[Device]) -> Links:
        """The links of some devices among themselves; a root of which one is left is none."""
        there = set(devices)
        processes = {one.process for one in there}
        ways = {pair: way for pair, way in self.ways.items() if pair <= there}
        networks = {pair: way for pair, way in self.networks.items() if pair <= processes}
        roots = {one: root for one, root in self.roots.items() if one in there}
        members = Counter(roots.values())
        rates = {one: some for one, some in self.rates.items() if one in there}
        return Links(ways, networks, {one: root for one, root in roots.items() if members[root] > 1}, rates)

    def __str__(self) -> str:
        """The text form, with a semicolon before each link."""
        texts = [f"{_joined(pair)}={way}" for pair, way in self.ways.items()]
        for of_devices in (self.roots, self.rates):
            for value in dict.fromkeys(of_devices.values()):
                texts.append(f"{'+'.join(str(one) for one in of_devices if of_devices[one] == value)}@{value}")
        texts += [f"{'-'.join(f'r{one}' for one in sorted(pair))}={way}" for pair, way in self.networks.items()]
        return "".join(f";{text}" for text in texts)


NO_LINKS = Links()


def _joined(pair: Iterable[Device]) -> str:
    return "-".join(map(str, sorted(pair, key=lambda one: (one.process, one.kind, one.index))))


def parse_links(items: Sequence[Span], labels: Mapping[Device, str]) -> Links:
    """The links of some items of a rig's text.

    Args:
        items: the pieces behind semicolons.
        labels: the devices of the rig, each with the name of its card, or nothing.

    Raises SpecError for what is no link, for a device that the rig does not have, for two ways of one pair, and for a
    bridge between cards that have none.
    """
    ways: dict[Pair, Way] = {}
    networks: dict[Processes, Way] = {}
    roots: dict[Device, str] = {}
    rates: dict[Device, Rates] = {}
    for item in (one for one in items if one.value):
        ends, way = item.partition("=")
        members, root = item.partition("@")
        if way is not None and _is_of_processes(ends):
            _put(networks, _processes_of(ends, {one.process for one in labels}), _network(way), item)
        elif way is not None:
            pair = _pair_of(ends, labels)
            _put(ways, pair, _way(way, [labels[one] for one in pair]), item)
        elif root is not None and (found := rates_in(root)) is not None:
            _reach(rates, members, found, labels)
        elif root is not None:
            _join(roots, members, root, labels)
        else:
            raise item.error(f"{item.value!r} is no link", _EXAMPLE)
    return Links(ways, networks, roots, rates)


def _put(known: dict[frozenset[T], Way], pair: frozenset[T], way: Way, item: Span) -> None:
    if pair in known:
        raise item.error(f"{item.partition('=')[0].value} stands twice in the rig", "each pair once")
    known[pair] = way


def _is_of_processes(ends: Span) -> bool:
    return all(_PROCESS.fullmatch(one.value.lower()) for one in ends.split("-"))


def _processes_of(ends: Span, known: Collection[int]) -> Processes:
    found = [int(one.value[1:]) for one in ends.split("-")]
    if len(set(found)) != 2 or len(found) != 2:
        raise ends.error(f"{ends.value!r} does not name two processes", "two of them, such as r0-r1")
    for one in found:
        if one not in known:
            raise ends.error(f"no device of the rig is of process {one}", f"a device of it, such as {one}/cuda0=24GiB")
    return frozenset(found)


def _pair_of(ends: Span, known: Collection[Device]) -> Pair:
    found = [_device(one, known) for one in ends.split("-")]
    if len(found) != 2 or len(set(found)) != 2:
        raise ends.error(f"{ends.value!r} does not name two devices", "two of them, such as cuda0-cuda1")
    if any(one.is_host for one in found):
        raise ends.error("the way to the host is that of a card's slot", "a way between two other devices")
    if found[0].process != found[1].process:
        one, other = sorted(device.process for device in found)
        raise ends.error(
            "devices of two processes are joined by their network", f"its rate, such as r{one}-r{other}=10Gbit"
        )
    return frozenset(found)


def _device(name: Span, known: Collection[Device]) -> Device:
    device = device_in(name.value.lower())
    if device is None:
        raise no_device(name, _EXAMPLE)
    if device not in known:
        raise name.error(f"the rig has no {device}", f"one of {', '.join(map(str, known))}")
    return device


def _network(text: Span) -> Way:
    if _named(text):
        raise text.error(f"{_named(text)} joins no two processes", "a rate such as 10Gbit or 1.2GB/s")
    return _rated(text)


def _way(text: Span, labels: Sequence[str]) -> Way:
    way = Way(_named(text))
    if not way.name:
        return _rated(text)
    if way.gigabytes(labels) is None:
        cards = " and ".join(label or "a card without a name" for label in labels)
        raise text.error(
            f"it is not known how fast {way} is between {cards}",
            f"a rate such as 50GB/s, or cards that are known to have it, such as {', '.join(list(NVLINK)[:3])}",
        )
    return way


def _named(text: Span) -> str:
    """The way of `WAYS` that a text means; empty for others."""
    return next((one for one in WAYS if plain_name(text.value) == plain_name(one)), "")


def _rated(text: Span) -> Way:
    is_short = len(text.value) < _LONGEST
    match = _RATE.fullmatch(text.value) if is_short else None
    if match is None and is_short and _OF_EITHER.fullmatch(text.value):
        raise text.error(f"{text.value} may mean bits or bytes", "10Gbit for bits, 10GB/s for bytes")
    if match is None:
        raise text.error(f"{text.value!r} is no way between two devices", _RATES, WAYS)
    factor = Fraction((1024 if match[3] else 1000) ** _POWERS[match[2].lower()], 10**9)
    exact = Fraction(match[1]) * factor / (8 if match[4].lower() == "bit" else 1)
    rate = float(min(exact, Fraction(_MOST)))
    if not _LEAST <= rate < _MOST:
        raise text.error(f"no link has {text.value}", "a rate such as 50GB/s or 10Gbit")
    return Way(rate=rate)


def _reach(rates: dict[Device, Rates], members: Span, found: Rates, known: Collection[Device]) -> None:
    """Gives some devices what they compute a second."""
    for one in (_device(name, known) for name in members.split("+&")):
        if one.is_host:
            raise members.error("what the host computes is measured", "a card, such as cuda0@92/104TFLOPS")
        if one in rates:
            raise members.error(f"what {one} computes stands twice in the rig", "each device once")
        rates[one] = found


def _join(roots: dict[Device, str], members: Span, root: Span, known: Collection[Device]) -> None:
    """Gives some devices their root."""
    name = root.value.lower()
    if "flop" in name:
        expected = "what cards compute, such as cuda0+cuda1@92/104TFLOPS, or a root such as cuda0+cuda1@root0"
        raise root.error(f"{root.value!r} is no rate", expected)
    if not _ROOT.fullmatch(name):
        raise root.error(f"{root.value!r} is no name of a root", "a word such as root0")
    found = [_device(one, known) for one in members.split("+&")]
    if len(set(found)) < 2 or any(one.is_host for one in found) or len({one.process for one in found}) > 1:
        raise members.error(
            "a root is shared by two devices or more of a process, beside the host",
            "a root such as cuda0+cuda1@root0",
        )
    for one in found:
        if one in roots or name in (roots[other] for other in roots if other not in found):
            raise members.error(f"{one} or {name} stands twice among the roots of the rig", "each of them once")
        roots[one] = name
