"""The schedule: the lowered form of a program, a flat list of small typed instructions.

What runs, what is predicted and what is drawn all read this one list. An instruction names values, weights and devices
as objects, and prints as a short line. Beside a ``Run``, a ``Wait`` before it and a ``Free`` or ``Copy`` after it
take effect inside: at the first reading, at the last, and when the value is made.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TypeAlias

from torch.fx import Node

from ..spec.devices import Device
from .program import Segment, Weight, device_of, tensors_of


@dataclass(frozen=True, slots=True)
class State:
    """A value, and on a device that it was sent to also how often its memory had been written when it was sent.

    On its own device a value is its memory, whatever was written there, and ``version`` is 0.
    """

    node: Node
    version: int = 0

    def __str__(self) -> str:
        return f"%{self.node.name}" + (f"'{self.version}" if self.version else "")


def resting_place(value: State, device: Device) -> Device:
    """Where a value lies that is used on a device: there, but a Python number is seen everywhere and lies at home."""
    return device if tensors_of(value.node) else device_of(value.node)


@dataclass(frozen=True, slots=True)
class Load:
    """Brings weights to a device; they stay until a Release names them."""

    device: Device
    weights: tuple[Weight, ...]

    def __str__(self) -> str:
        return f"load {len(self.weights)} weights, {sum(w.nbytes for w in self.weights)} bytes → {self.device}"


@dataclass(frozen=True, slots=True)
class Release:
    """Lets go of weights on a device."""

    device: Device
    weights: tuple[Weight, ...]

    def __str__(self) -> str:
        return f"release {len(self.weights)} weights on {self.device}"


@dataclass(frozen=True, slots=True)
class Landing:
    """Where on its target a value lands: some columns of memory that was set aside there."""

    value: State
    start: int
    length: int

    def __str__(self) -> str:
        return f"{self.value}[{self.start}:{self.start + self.length}]"


@dataclass(frozen=True, slots=True)
class Copy:
    """Starts sending a value from the device it is on to another; a Wait on the target must come before its use.

    It lands in memory of its own, or ``into`` the place that it has in a whole.
    """

    value: State
    source: Device
    target: Device
    into: Landing | None = None

    def __str__(self) -> str:
        return f"copy {self.value} {self.source} → {self.target}" + (f" into {self.into}" if self.into else "")


@dataclass(frozen=True, slots=True)
class Wait:
    """Makes the computation on a device wait until a copy of a value has arrived there, or has left it."""

    value: State
    source: Device
    target: Device
    device: Device

    def __str__(self) -> str:
        return f"wait {self.value} {self.source} → {self.target} on {self.device}"


@dataclass(frozen=True, slots=True)
class Run:
    """Runs a segment on its device: what it reads from outside, and what it yields that outlives it."""

    segment: Segment
    reads: tuple[State, ...]
    yields: tuple[State, ...]

    def __str__(self) -> str:
        return f"run segment {self.segment.index} on {self.segment.device}"


@dataclass(frozen=True, slots=True)
class Free:
    """Lets go of a value on a device."""

    value: State
    device: Device

    def __str__(self) -> str:
        return f"free {self.value} on {self.device}"


@dataclass(frozen=True, slots=True)
class Return:
    """Hands out the results, which lie on the main device; nothing else is held any more."""

    values: tuple[State, ...]
    device: Device

    def __str__(self) -> str:
        return f"return {', '.join(map(str, self.values))} from {self.device}".replace("return  ", "return ")


Instruction: TypeAlias = Load | Release | Copy | Wait | Run | Free | Return


@dataclass(frozen=True)
class Schedule:
    """The instructions of one call, in the order in which they are issued."""

    instructions: tuple[Instruction, ...]

    def __iter__(self) -> Iterator[Instruction]:
        return iter(self.instructions)

    def __len__(self) -> int:
        return len(self.instructions)

    def __str__(self) -> str:
        return "\n".join(map(str, self.instructions))
