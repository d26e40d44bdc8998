"""How many bytes dovetail may use of each device (`--max-vram`, diffusers' `max_memory`)."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from numbers import Real
from typing import TypeAlias

from ..devices.device import Device, canonical_name
from ..devices.memory import Memory
from ..devices.rig import Rig
from ..spans import Span
from ..units import NUMBER, exact_bytes, number_text, parse_bytes
from .backend import NAME, Word
from .items import Given, items_text, read_items, spec_text
from .roles import DEFAULT_KEYS

MaxMemory: TypeAlias = "Mapping[int | str, float | str] | Mapping[int, float | str] | Mapping[str, float | str]"
"""diffusers' and accelerate's budgets, in bytes, such as ``{0: "10GiB", "cpu": "30GiB"}``."""

_PERCENT = re.compile(rf"({NUMBER})\s*%", re.IGNORECASE)
_ZERO = re.compile(r"0+(?:\.0*)?|\.0+")
_WAYS = "0 for no limit, -100% for nothing of the device, or 1B and more"


@dataclass(frozen=True)
class Amount:
    """An amount of a device's memory, in bytes or in percent of all it has; negative: that much is left free."""

    bytes: int = 0
    percent: float = 0.0

    def of(self, memory: Memory) -> int:
        """The bytes that may be used of a device's memory, never more than is free."""
        if not self:
            return memory.free
        asked = self.bytes + int(memory.total * self.percent / 100)
        leave = self.bytes < 0 or self.percent < 0
        return max(0, memory.free + asked) if leave else min(asked, memory.free)

    def __bool__(self) -> bool:
        """Whether there is a limit."""
        return bool(self.bytes or self.percent)

    def __str__(self) -> str:
        """The text form: `6GiB`, `-80%`, `0`."""
        if self.percent:
            return f"{number_text(self.percent)}%"
        sign = "-" if self.bytes < 0 else ""
        return f"{sign}{exact_bytes(abs(self.bytes))}" if self.bytes else "0"


_NOTHING = Amount(percent=-100.0)


@dataclass(frozen=True)
class Budget:
    """The memory that may be used of each device; the same budget serves every component there."""

    default: Amount | None = None
    named: tuple[tuple[Word, Amount], ...] = ()

    def limits(self, rig: Rig) -> dict[Device, int]:
        """The bytes that may be used of each device of a rig.

        An amount without a device is for each GPU, and for the host only where it is alone: who says 8 GB means cards.

        Raises:
            SpecError: a device is budgeted that the rig does not have.
        """
        amounts = dict.fromkeys(rig, Amount()) | dict.fromkeys(rig.gpus or rig, self.default or Amount())
        for word, amount in self.named:
            devices = word.devices(rig)
            _check_used(word, devices, rig)
            amounts.update(dict.fromkeys(devices, amount))
        return {device: amount.of(rig[device]) for device, amount in amounts.items()}

    def __str__(self) -> str:
        """The text form, which `parse_budget` reads back."""
        return items_text(self.default, self.named, str)


def _check_used(word: Word, devices: Sequence[Device], rig: Rig) -> None:
    """Raises SpecError for a budget of a device that nothing is for: a simulated one that nobody named."""
    for device in devices:
        if device not in rig and not device.is_host:
            span = word.place or Span.whole(word.text)
            there = ", ".join(map(str, rig))
            expected = f"one of {there}; or name {device} in --backend or --rig"
            raise span.error(f"nothing is placed on {device}, so it needs no budget", expected)


def parse_budget(given: Given) -> Budget:
    """The budget of a text such as `6`, `cuda0=6,cuda1=2GiB`, `80%` or `-1.5`, of a number of GiB, or of a dict.

    A bare number counts GiB; 0 is no limit, and a negative amount is what is left free. What comes to no byte and is
    not written as 0 is refused: it may mean no limit, or nothing at all.

    Raises:
        SpecError: points at the wrong place and says what was expected.
    """
    return Budget(*read_items(spec_text(given), _read_device, _read_amount))


def parse_max_memory(given: MaxMemory) -> Budget:
    """The budget of diffusers' and accelerate's `max_memory`: `{0: "10GiB", "cpu": "30GiB"}`.

    Numbers are bytes there, and what comes to no byte means nothing at all. Integer keys number the GPUs.
    """
    amounts = {key: _in_bytes(value) for key, value in given.items()}
    return Budget(*read_items(spec_text(amounts), _read_device, _read_most))


def _in_bytes(value: object) -> object:
    if isinstance(value, bool):
        return value
    return f"{value}B" if isinstance(value, Real) else value


def _read_most(span: Span) -> Amount:
    """An amount of which nothing means nothing at all."""
    return _read_any(span) or _NOTHING


def _read_device(span: Span) -> Word | None:
    if span.value.lower() in DEFAULT_KEYS:
        return None
    if not span.value or not NAME.fullmatch(span.value):
        raise span.error(f"{span.value!r} is not the name of a device", "a device (cuda0, cpu, sim0 …), or all")
    return Word(canonical_name(span.value), span)


def _read_amount(span: Span) -> Amount:
    """An amount that is a limit, or 0 for none."""
    amount = _read_any(span)
    if not amount and not _ZERO.fullmatch(span.value):
        raise span.error(f"{span.value!r} comes to no byte, which limits nothing", _WAYS)
    return amount


def _read_any(span: Span) -> Amount:
    sign = -1 if span.value.startswith("-") else 1
    size = Span(span.text, span.start + (sign < 0), span.end).strip()
    percent = _PERCENT.fullmatch(size.value)
    if percent is None:
        return Amount(bytes=sign * parse_bytes(size))
    if float(percent[1]) > 100:
        raise size.error("no device has more than 100%", "a part of the device's memory, such as 80%")
    return Amount(percent=sign * float(percent[1]))
