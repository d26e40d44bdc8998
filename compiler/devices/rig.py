"""The rig: the set of devices that a program is compiled for, with what each of them has."""

from __future__ import annotations

import os
import re
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import TYPE_CHECKING

from ..spans import Span
from ..units import exact_bytes, format_bytes, parse_bytes
from .cards import CARDS, NVLINK, Card, card_of, peer_of, way_of
from .device import HOST, SIM, Device, canonical_name, device_in, no_device
from .links import NO_LINKS, Links, parse_links
from .memory import Memory
from .other_names import told_of
from .probe import Probed, probe_accelerators, probe_host
from .rig_items import refuse_odd_words, rig_items

if TYPE_CHECKING:
    import torch

_UNIFIED = ("mps",)
_SIZED = "devices and their sizes, such as cuda0=16GiB,cuda1=10GiB, or cards, such as 2x RTX 3090,64GiB"
_CONTEXT = 6 * 2**30 // 10
PROCESS = 2 * 2**30
"""Bytes of the host's memory that Python, PyTorch, diffusers and the drivers take themselves."""


@dataclass(frozen=True)
class Rig:
    """The devices a program is compiled for, in order, with their memory; `present` says whether it can run here.

    ``links`` has what is said of how they reach one another. `str(rig)` is the text that `Rig.parse` reads.
    """

    memory: Mapping[Device, Memory] = field(default_factory=dict, hash=False)
    present: bool = field(default=True, compare=False)
    links: Links = NO_LINKS

    @classmethod
    def of(cls, **sizes: int | tuple[int, int]) -> Rig:
        """The rig of devices by name with their bytes in all, or bytes free and in all."""
        pairs = {name: size if isinstance(size, tuple) else (size, size) for name, size in sizes.items()}
        return cls(dict(_sized(Device.named(name), total, free) for name, (free, total) in pairs.items()))

    @classmethod
    def detect(cls, measured: Collection[str] | None = None) -> Rig:
        """The devices of this machine, the host last.

        What is free is asked of the accelerators of these names, of all if left out; the others count as empty.
        """
        wanted = (
            None
            if measured is None
            else {(one.kind, one.index) for one in map(Device.named, measured) if not one.process}
        )
        return cls(dict([*map(_found, probe_accelerators(wanted)), (_HOST, _host_memory())]))

    def measured(self, names: Collection[str]) -> Rig:
        """This rig of detected devices, with what is free on those of these names."""
        if not any(device.name in names and not device.is_host and not device.is_simulated for device in self):
            return self
        found = {device: memory for device, memory in Rig.detect(names).memory.items() if device.name in names}
        return replace(self, memory={device: found.get(device, memory) for device, memory in self.memory.items()})

    @classmethod
    def parse(cls, text: str) -> Rig:
        """The rig of a text such as `cuda0=24GiB,cuda1=16GiB`, for planning on a machine that has neither.

        A size is the memory of the device, or `free/total` as the driver reports it, and may end with the name of a
        card: `24GiB@RTX 3090`, behind which its way to others of its kind may stand: `NVLink`, `P2P` (through the slot)
        or `no P2P` (through the host). The same is reserved of it as of a device that is found. Cards may stand without
        the names of devices: `2x RTX 3090,64GiB`, see `rig_items`. `cpu` and simulated devices may go without: they
        get what this host has. Behind semicolons stand the ways of pairs, shared roots, networks and what cards
        compute, see `links`. A rig can run here if each of its devices is the host, simulated, or found here and as
        large.

        Raises:
            SpecError: the text is not a rig.
        """
        span, *links = Span.whole(text).split(";")
        items = rig_items(span, lambda name: str(device_in(name.strip().lower()) or ""))
        if not items:
            raise span.error("the rig has no devices", "devices with their memory, such as cuda0=24GiB,cuda1=16GiB")
        memory: dict[Device, Memory] = {}
        for item in items:
            device, size = _read_device(item.text, item.place)
            if device in memory:
                raise item.place.error(f"{device.name} stands twice in the rig", "each device once")
            memory[device] = size
        _check_exists(span, memory)
        return cls(memory, _are_here(memory), parse_links(links, {one: size.label for one, size in memory.items()}))

    def __str__(self) -> str:
        """The text form."""
        devices = ",".join(f"{device.name}={_memory_text(memory)}" for device, memory in self.memory.items())
        return f"{devices}{self.links}"

    @property
    def told(self) -> str:
        """The devices with their memory for people to read, which is rounded."""
        return ", ".join(f"{device} ({format_bytes(memory.total)})" for device, memory in self.memory.items())

    def __repr__(self) -> str:
        return f"<Rig {self}>"

    def __iter__(self) -> Iterator[Device]:
        """The devices in order."""
        return iter(self.memory)

    def __getitem__(self, device: Device) -> Memory:
        """The memory of a device; the host and simulated devices have what this host has, where the rig does not say.

        Raises KeyError for any other device that is not of the rig.
        """
        if device in self.memory or device.process or not (device.is_host or device.is_simulated):
            return self.memory[device]
        host = self.memory.get(_HOST) or self._shared_memory or _host_memory()
        return host if device.is_host else Memory(host.total, host.total)

    @property
    def _shared_memory(self) -> Memory | None:
        """The host's memory where a rig does not say it, and a device has the same memory: that of this."""
        shared = [one for device, one in self.memory.items() if one.integrated and device.is_of_here]
        if not shared:
            return None
        most = max(shared, key=lambda one: one.free)
        return replace(most, integrated=False, reserve=kept_for_process(most.free), why="")

    @cached_property
    def devices(self) -> tuple[Device, ...]:
        """The devices in order; the first one of a program or component is its main device."""
        return tuple(self.memory)

    @property
    def free(self) -> dict[Device, int]:
        """The bytes that may be used of each device."""
        return {device: memory.free for device, memory in self.memory.items()}

    def only(self, devices: Iterable[Device]) -> Rig:
        """The rig of some devices of this one, in their order."""
        return self.having({device: self[device] for device in devices})

    def having(self, memory: Mapping[Device, Memory]) -> Rig:
        """The rig of some devices of this one with this memory, and their links among themselves."""
        return Rig(memory, self.present, self.links.only(memory) if self.links else NO_LINKS)

    @property
    def gpus(self) -> tuple[Device, ...]:
        """Everything but the host: real GPUs first, then integrated ones."""
        return tuple(sorted((d for d in self if not d.is_host), key=lambda device: self[device].integrated))

    @property
    def host(self) -> Device:
        """The CPU, which every rig has even if its text does not name it."""
        return _HOST

    @property
    def auto(self) -> Device:
        """The first GPU, else an integrated one, else the host."""
        return next(iter(self.gpus), self.host)

    def find(self, name: str | int | torch.device | Device | Span, also: Sequence[str] = ()) -> Device:
        """The device of a name, of a unique beginning of one (any case), or of a GPU's number.

        The host and simulated devices are found in every rig: they can be made anywhere. ``also`` has the words that
        may stand there too, which an error names.

        Raises:
            SpecError: no device has that name, or several begin with it.
        """
        span = name if isinstance(name, Span) else Span.whole(str(name))
        text = canonical_name(span.value)
        exact = next((device for device in self if device.name == text), None)
        return exact or _on_demand(text) or self._by_number(text) or self._by_prefix(span, text, also)

    def with_device(self, name: str | Device, memory: Memory | None = None) -> Rig:
        """This rig and one more device with its memory, unless it has that one already."""
        device = name if isinstance(name, Device) else self.find(name)
        if device in self.memory:
            return self
        added = {device: memory or self[device]}
        return Rig({**self.memory, **added}, self.present and _are_here(added), self.links)

    def _by_number(self, text: str) -> Device | None:
        return self.gpus[int(text)] if re.fullmatch("[0-9]{1,4}", text) and int(text) < len(self.gpus) else None

    def _by_prefix(self, span: Span, text: str, also: Sequence[str]) -> Device:
        names = [device.name for device in self]
        known = [*names, *([] if HOST in names else [HOST])]
        matches = [name for name in known if text and name.startswith(text)]
        if len(matches) == 1:
            return self.find(matches[0])
        if matches:
            raise span.error(f"{span.value!r} may be {' or '.join(matches)}", "a name that begins one device only")
        if told_of(text):
            raise no_device(span, self.told)
        expected = f"{', '.join((*also, f'one of {self.told}'))}, or a simulated one (sim0)"
        asked = device_in(text)
        if self.present and (asked is not None or text.startswith("gpu")):
            none = "" if self.gpus else "; PyTorch sees no GPU on this machine"
            name = "cuda0" if asked is None else asked.name
            expected += f"{none}; dovetail plan --rig {name}=24GiB plans for one that is not here"
        other = (
            f", which PyTorch calls {asked.name}" if asked is not None and asked.kind not in span.value.lower() else ""
        )
        raise span.error(f"no device is called {span.value!r}{other}", expected, [*known, *also, f"{SIM}0", f"{SIM}1"])


_HOST = Device(HOST)


def joined_links(rigs: Iterable[Rig]) -> Links:
    """The links of several rigs of one machine."""
    links = [rig.links for rig in rigs]
    ways = {pair: way for one in links for pair, way in one.ways.items()}
    networks = {pair: way for one in links for pair, way in one.networks.items()}
    rates = {device: some for one in links for device, some in one.rates.items()}
    return Links(ways, networks, {device: root for one in links for device, root in one.roots.items()}, rates)


def _on_demand(text: str) -> Device | None:
    return Device.named(text) if text == HOST or re.fullmatch(rf"{SIM}[0-9]{{1,4}}", text) else None


def _found(it: Probed) -> tuple[Device, Memory]:
    device, memory = _sized(Device(it.kind, it.index), it.total, it.free)
    card = card_of(it.label)
    integrated = it.integrated or (card is not None and card.integrated)
    return device, replace(memory, label=it.label, integrated=integrated)


def _sized(device: Device, total: int, free: int) -> tuple[Device, Memory]:
    """A device with its memory, of which the same is reserved however its size is known: found, typed or given."""
    reserve = kept_for_process(free) if device.is_host else reserve_of(device.kind, total)
    return device, Memory(total, free, reserve=reserve)


def reserve_of(kind: str, total: int) -> int:
    """The bytes reserved of a device for the context, for what kernels need meanwhile, and for fragments.

    0.6 GiB (a quarter, where it has less than 2.4 GiB) and 5 % of the memory for CUDA and XPU, 5 % for MPS, nothing for
    simulated devices, whose capacity is exact, and for the host, of which `kept_for_process` is reserved. The
    environment variable DOVETAIL_RESERVE, a size such as 1GiB or a percentage, takes their place.
    """
    if kind in (HOST, SIM):
        return 0
    given = Span.whole(os.environ.get("DOVETAIL_RESERVE", ""))
    if given.value.endswith("%"):
        return total * parse_percent(given) // 100
    if given.value:
        return parse_bytes(given)
    return total // 20 + (min(_CONTEXT, total // 4) if kind in ("cuda", "xpu") else 0)


def kept_for_process(free: int) -> int:
    """The bytes of the host's free memory that are left to the process: 2 GiB, a quarter where less than 8 are free."""
    return min(PROCESS, free // 4)


def parse_percent(span: Span) -> int:
    """The whole number before a per cent sign; raises SpecError for anything else."""
    number = span.value[:-1].strip()
    if not re.fullmatch("[0-9]{1,3}", number) or int(number) > 100:
        raise span.error(f"{span.value!r} is no part of a device's memory", "0% to 100%")
    return int(number)


def _host_memory() -> Memory:
    _, memory = _sized(_HOST, *probe_host())
    return replace(memory, label="host memory")


def _are_here(memory: Mapping[Device, Memory]) -> bool:
    """Whether each device is of this process, and the host, simulated, or found here and at least as large."""
    asked = {one: size.total for one, size in memory.items() if one.process or not (one.is_host or one.is_simulated)}
    here = Rig.detect(measured=()).memory if asked else {}
    return all(one in here and total <= here[one].total for one, total in asked.items())


def _check_exists(span: Span, memory: Mapping[Device, Memory]) -> None:
    """Raises SpecError for devices that no machine has together."""
    for one in (device for device in memory if device.kind in _UNIFIED):
        others = [two for two in memory if two.process == one.process and two.kind not in (HOST, SIM, one.kind)]
        if others:
            raise span.error(
                f"no machine has {one} and {others[0]}: mps is the GPU of a Mac, which has no other",
                f"a rig such as {one}=64GiB, or one of cards, such as {others[0]}=24GiB,cpu=64GiB",
            )


def _read_device(text: Span, place: Span) -> tuple[Device, Memory]:
    """The device and memory of an item such as `cuda0=24GiB@RTX 3090`, which was typed at a place."""
    key, size = text.partition("=")
    device = device_in(key.value.strip().lower())
    if device is None:
        raise no_device(key, _SIZED)
    if size is not None:
        size, card = size.partition("@")
        alone = card_of(size.value) if card is None else None
        size, card = (Span.whole(f"{alone.memory:g}GiB"), size) if alone is not None else (size, card)
        free, total = size.partition("/")
        _, memory = _sized(device, *_checked(device.name, size, parse_bytes(total or free), parse_bytes(free)))
        known, way = _card(card) if card else (None, "")
        integrated = device.kind in _UNIFIED or (known is not None and known.integrated)
        return device, replace(memory, label=known.name if known else "", integrated=integrated, way=way)
    if device.process or not (device.is_host or device.is_simulated):
        raise place.error(f"{device} has no size", f"its memory, such as {device}=24GiB")
    return device, Rig()[device]


def _checked(name: str, size: Span, total: int, free: int) -> tuple[int, int]:
    if not 0 <= free <= total or not total:
        raise size.error(f"{name} cannot have {size.value!r}", "more than nothing, and no more free than there is")
    return total, free


def _card(span: Span) -> tuple[Card, str]:
    """A card, and the way to others of its kind that is said behind it."""
    card, way = card_of(span.value), way_of(span.value)
    if card is None:
        expected = "a card such as RTX 3090, or iGPU for an integrated one; dovetail devices --cards lists them"
        raise span.error(f"no card is known as {span.value!r}", expected, [one.name for one in CARDS])
    refuse_odd_words(span, span.value)
    if peer_of(card, way) is None:
        raise span.error(f"no NVLink joins two {card.name}", f"P2P, no P2P, or a card that has it: {', '.join(NVLINK)}")
    return card, way


def _memory_text(memory: Memory) -> str:
    total = exact_bytes(memory.total)
    card = f"@{memory.label} {memory.way}".rstrip() if memory.label in {one.name for one in CARDS} else ""
    return (total if memory.free == memory.total else f"{exact_bytes(memory.free)}/{total}") + card
