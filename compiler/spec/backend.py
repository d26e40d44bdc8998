"""Where components run (`--backend`), and where their weights rest (`--params-backend`)."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Literal, TypeAlias

from ..devices.device import HOST, Device, canonical_name
from ..devices.rig import Rig
from ..errors import SpecError
from ..spans import Span
from ..units import exact_bytes, parse_bytes
from .items import ByComponent, Given, read_items, spec_text
from .residency import ALIKE, Amounts
from .roles import read_key

AUTO, GPU, BALANCED, DISK = "auto", "gpu", "balanced", "disk"
DEVICE = "device"
"""Stands for the devices that compute with the weights, where all of these or so many bytes stay."""
_CHOOSERS = {"": AUTO, "default": AUTO, AUTO: AUTO, GPU: GPU, BALANCED: BALANCED}
NAME = re.compile(r"(?:[0-9]+/)?[A-Za-z0-9_.:]*")
_EXPECTED = "a device (cuda0, cpu, sim0 …), auto, gpu or balanced"


@dataclass(frozen=True)
class Word:
    """One word that stands for devices: a name, the beginning of one, or a word that chooses.

    `place` is where it was read, so that an error found only on a rig can still point at it.
    """

    text: str
    place: Span | None = field(default=None, compare=False, repr=False)

    def devices(self, rig: Rig, also: Sequence[str] = ()) -> tuple[Device, ...]:
        """The devices that the word means on a rig; an error names what else may stand there.

        Raises:
            SpecError: the rig has no such device.
        """
        span = self.place or Span.whole(self.text)
        if self.text == AUTO:
            return (rig.auto,)
        if self.text == BALANCED:
            return rig.gpus or (rig.host,)
        if self.text == GPU:
            if not rig.gpus:
                raise span.error("this rig has no GPU", "auto, cpu, or a simulated device (sim0)")
            return rig.gpus[:1]
        return (rig.find(span, also),)

    def __str__(self) -> str:
        """The canonical spelling."""
        return self.text


@dataclass(frozen=True)
class Resting(Word):
    """Weights rest in one place, and so many bytes of them on their devices, or in the host's memory."""

    amounts: Amounts = ALIKE

    def __str__(self) -> str:
        """The canonical spelling."""
        on_device = f"{DEVICE}:{exact_bytes(self.amounts.on_device)}" if self.amounts.on_device else ""
        in_memory = f"{HOST}:{exact_bytes(self.amounts.in_memory)}" if self.amounts.in_memory else ""
        return "&".join(filter(None, (on_device, in_memory, self.text)))


Target: TypeAlias = tuple[Word, ...]


@dataclass(frozen=True)
class Backend(ByComponent[Target]):
    """The devices that each component runs on; the first of a list is the main device."""

    def devices_for(self, attribute: str, role: str, rig: Rig) -> tuple[Device, ...]:
        """The devices of a component on a rig, the main device first.

        Raises:
            SpecError: the rig lacks a device, or a list names one twice.
        """
        found: list[Device] = []
        for word in self.get(attribute, role) or (Word(AUTO),):
            for device in word.devices(rig):
                if device in found:
                    raise _twice(word, device.name)
                found.append(device)
        return tuple(found)

    def names(self, components: Mapping[str, str], rig: Rig) -> set[str]:
        """The names of all devices that components (attribute name → role) run on."""
        found = (self.devices_for(attribute, role, rig) for attribute, role in components.items())
        return {device.name for devices in found for device in devices}

    def extend(self, rig: Rig) -> Rig:
        """The rig with the devices added that this spec names and that can be made anywhere."""
        targets = [*([self.default] if self.default else []), *(target for _, target in self.named)]
        for word in (word for target in targets for word in target if word.text not in _CHOOSERS):
            rig = rig.with_device(word.devices(rig)[0])
        return rig

    def on_main(self, rig: Rig) -> Backend:
        """This with the first device of a rig, as `Rig.auto` says it, for all that is left to a search."""

        def settled(target: Target | None) -> Target:
            is_open = target is None or [word.text for word in target] == [AUTO]
            return (Word(rig.auto.name),) if target is None or is_open else target

        return Backend(settled(self.default), tuple((key, settled(target)) for key, target in self.named))

    def on_one_gpu(self, rig: Rig) -> tuple[Backend, Rig]:
        """This, and the rig with the host and one GPU: the one that is named, or the first.

        Raises SpecError where several are named.
        """

        def plain(target: Target) -> Target:
            return tuple(
                Word(word.devices(rig)[0].name, word.place) if word.text.isdecimal() else word for word in target
            )

        default = None if self.default is None else plain(self.default)
        spec = Backend(default, tuple((key, plain(target)) for key, target in self.named))
        targets = [*([spec.default] if spec.default else []), *(target for _, target in spec.named)]
        words = [word for target in targets for word in target if word.text not in _CHOOSERS]
        asked = {word.devices(rig)[0]: word for word in words if not word.devices(rig)[0].is_host}
        if len(asked) > 1:
            word = list(asked.values())[1]
            raise (word.place or Span.whole(word.text)).error(
                f"{word} is a second GPU, and one was asked for", "one GPU, unless --no-multi-gpu is left out"
            )
        gpus = list(asked) or list(rig.gpus[:1])
        return spec, rig.only([device for device in rig if device.is_host or device in gpus])

    def _value_text(self, value: Target) -> str:
        return "&".join(map(str, value))


@dataclass(frozen=True)
class ParamsBackend(ByComponent[Word]):
    """Where the weights of each component rest while they are not in use."""

    def amounts(self, attribute: str, role: str) -> Amounts:
        """The bytes of weights that rest elsewhere than most, spread evenly over all of them."""
        word = self.get(attribute, role)
        return word.amounts if isinstance(word, Resting) else ALIKE

    def resting_place(self, attribute: str, role: str, rig: Rig) -> Device | Literal["disk"] | None:
        """A device, the disk, or None: the weights rest where they are used."""
        word = self.get(attribute, role)
        if word is None or word.text in (AUTO, DEVICE):
            return None
        return "disk" if word.text == DISK else word.devices(rig, (DISK, DEVICE))[0]


def parse_backend(given: Given, components: Mapping[str, str] | None = None) -> Backend:
    """The backend of a text such as `te=cpu,vae=cuda0,diffusion=cuda0&cuda1`, or of a dict with the same parts.

    Args:
        given: text, a dict of key → device or list of devices, one device, or None.
        components: the attribute name → role of each component whose own name may be a key.

    Raises:
        SpecError: points at the wrong place, says what was expected, offers the nearest name.
    """
    text = spec_text(given)
    _refuse_two_bare(text)
    return Backend(*read_items(text, partial(read_key, components=components or {}), _read_target))


def parse_params_backend(given: Given, components: Mapping[str, str] | None = None) -> ParamsBackend:
    """Like `parse_backend`, for the places where weights rest: one device each, `disk`, or amounts in several.

    `device` stands for the devices that compute with them, where they stay. Amounts are such as `cpu:15GiB&disk`,
    `device:8GiB&cpu` or `device:8GiB&cpu:4GiB&disk`: the last place has what is left.
    """
    return ParamsBackend(*read_items(spec_text(given), partial(read_key, components=components or {}), _read_place))


def _refuse_two_bare(text: str) -> None:
    """A second target without a key would override the first: whoever writes `cuda0,cuda1` means a list."""
    bare = [item for item in Span.whole(text).split(",") if item.value and "=" not in item.value]
    if len(bare) > 1:
        joined = "&".join(item.value for item in bare)
        problem = "two targets without a key: the second would take the place of the first"
        raise SpecError(problem, text, bare[1].start, bare[1].end, "one target for all, or key=target", joined)


def _read_target(span: Span) -> Target:
    parts = span.split("&+")
    words: list[Word] = []
    for part in parts:
        word = _read_word(part)
        if word.text == DISK:
            raise part.error("nothing can run on the disk", f"{_EXPECTED}; --params-backend may say disk")
        if len(parts) > 1 and word.text in _CHOOSERS:
            raise part.error(
                f"{part.value or 'an empty name'!r} cannot stand in a list of devices", "the name of a device"
            )
        if word in words:
            raise _twice(word, word.text)
        words.append(word)
    return tuple(words)


def _read_place(span: Span) -> Word:
    if set("&+") & set(span.value):
        return _read_amounts(span)
    if _place_of(span) in (HOST, DEVICE) and ":" in span.value:
        raise span.error("it is not said where the other weights are kept", f"{span.value}&{DISK}")
    if _place_of(span) == DEVICE:
        return Word(DEVICE, span)
    word = _read_word(span)
    if word.text == BALANCED:
        raise span.error("weights cannot be kept 'balanced'", "one device, or disk")
    return word


def _read_amounts(span: Span) -> Resting:
    """So many bytes on their devices, so many in host memory, and the others in the place that has no size."""
    words = span.split("&+")
    places = {_place_of(part): part for part in words}
    found = next((mix for mix in _MIXES if set(mix) == places.keys() and len(words) == len(mix)), None)
    if found is None:
        said = f"one device, {DISK}, {HOST}:15GiB&{DISK}, {DEVICE}:8GiB&{HOST}, or {DEVICE}:8GiB&{HOST}:15GiB&{DISK}"
        raise span.error("weights are kept in one place, not in a list", said)
    *some, last = found
    if ":" in places[last].value:
        raise places[last].error("it is not said where the other weights are kept", f"{last} without a size")
    sizes = {place: _read_amount(places[place]) for place in some}
    return Resting(last, places[last], Amounts(sizes.get(DEVICE, 0), sizes.get(HOST, 0)))


_MIXES = ((HOST, DISK), (DEVICE, HOST), (DEVICE, DISK), (DEVICE, HOST, DISK))


def _place_of(part: Span) -> str:
    return part.value.partition(":")[0].strip().lower()


def _read_amount(part: Span) -> int:
    _, size = part.partition(":")
    if size is None:
        where = "in host memory" if _place_of(part) == HOST else "on its devices"
        raise part.error(f"it is not said how much is kept {where}", f"a size: {_place_of(part)}:15GiB")
    return parse_bytes(size)


def _read_word(span: Span) -> Word:
    if not NAME.fullmatch(span.value):
        raise span.error(f"{span.value!r} is not the name of a device", _EXPECTED)
    text = canonical_name(span.value)
    return Word(_CHOOSERS.get(text, text), span)


def _twice(word: Word, name: str) -> Exception:
    span = word.place or Span.whole(word.text)
    return span.error(f"{name} is named twice", "each device of a list once")


def with_cpu_flags(backend: str, *, clip: bool = False, vae: bool = False, control_net: bool = False) -> str:
    """The text of `--backend` with `--clip-on-cpu`, `--vae-on-cpu` and `--control-net-cpu` put before it.

    >>> with_cpu_flags("vae=cuda0", clip=True)
    'te=cpu,vae=cuda0'
    """
    flags = {"te=cpu": clip, "vae=cpu": vae, "controlnet=cpu": control_net}
    return ",".join([item for item, asked in flags.items() if asked] + ([backend] if backend else []))


def with_offload_flag(params_backend: str, *, offload_to_cpu: bool = False, stream_layers: bool = False) -> str:
    """The text of `--params-backend` with `--offload-to-cpu` and `--stream-layers` put before it: explicit items win.

    >>> with_offload_flag("te=disk", offload_to_cpu=True)
    '*=cpu,te=disk'
    """
    flags = {"*=cpu": offload_to_cpu, "diffusion=cpu": stream_layers}
    return ",".join([item for item, asked in flags.items() if asked] + ([params_backend] if params_backend else []))
