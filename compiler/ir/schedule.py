"""The schedule: the lowered form of a program, a flat list of small typed instructions.

What runs, what is verified, what is predicted and what is drawn all read this one list: nothing is decided after it.
A `Run` holds one `Step` a node, which says what is awaited before the node, and what is sent and freed after it.
Bringing something to a device is started by one instruction (`Copy` for a value, `Load` for weights) and awaited by
another (`Await`), so that computing goes on in between.

Copies have no order that devices must keep, as collective operations have. One goes from a device to another, into
boxes of memory that no other copy of the value lands in, so that whichever arrives first, the memory holds the same;
and a device that begins one waits for nobody. What stands for an order are the instructions themselves: memory is set
aside before what lands there, a value is made before it is sent, all that comes of a value is awaited before it is
read, and terms of a sum land one behind another by the numbers of devices, in which they are then added.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from enum import Enum
from typing import TypeAlias

from torch.fx import Node

from ..devices.device import Device
from .boxes import Landing
from .program import Segment, device_of, tensors_of
from .split import lying_on, source_of


@dataclass(frozen=True, slots=True)
class ValueRef:
    """Refers to what a node makes: its value on its device, or of a split one the part that a device has."""

    node: Node

    def __str__(self) -> str:
        return f"%{self.node.name}"


def read_on(value: Node, device: Device) -> ValueRef:
    """What a node reads on a device of an operand."""
    return ValueRef(lying_on(value, device))


def resting_place(value: ValueRef, device: Device) -> Device:
    """Where a value lies that is used on a device: on that device, but a Python number lies where it was made."""
    return device if tensors_of(value.node) else device_of(value.node)


@dataclass(frozen=True, slots=True)
class Input:
    """The arguments of a call, which lie on the main device."""

    values: tuple[ValueRef, ...]
    device: Device

    def __str__(self) -> str:
        return f"input {_listed(self.values)} on {self.device}"


class Lifetime(Enum):
    """How long loaded weights stay on their device."""

    PROGRAM = "program"  # as long as weights are bound to the program: loaded once, before the first call
    PHASE = "phase"  # until the caller ends its phase, over any number of calls
    STAGE = "stage"  # until the Release of this call


@dataclass(frozen=True, slots=True)
class Load:
    """Starts bringing weights, given by name, to a device; an Await must come before their first use.

    Weights of a stage land in a numbered ``slot`` of the device, which must be empty then, and is taken until a
    Release. Those of a phase have a slot of their own, which the first call that finds it empty fills, and which is not
    filled again before the phase has ended. ``number`` tells the loads of a schedule apart.
    """

    number: int
    weights: tuple[str, ...]
    device: Device
    lifetime: Lifetime = Lifetime.PROGRAM
    slot: int = -1

    def __str__(self) -> str:
        where = f"slot {self.slot} of {self.device}" if self.slot >= 0 else str(self.device)
        names = ", ".join(map(json.dumps, self.weights))
        return f"load {self.number} to {where} for the {self.lifetime.value}: {names}"


@dataclass(frozen=True, slots=True)
class Allocate:
    """Sets memory aside for what a device has of a value whose state changes, in which what is sent of it lands.

    Where its sizes are not known, it has the leading sizes of ``like``, which lies on its own device; of a part, on the
    first device that has one.
    """

    value: ValueRef
    device: Device
    like: ValueRef | None = None

    def __str__(self) -> str:
        return f"allocate {self.value} on {self.device}" + (f" like {self.like}" if self.like else "")


@dataclass(frozen=True, slots=True)
class Copy:
    """Starts carrying out a transfer or a reshard from a device to another; an Await there must come before its use.

    ``value`` is what that makes. It lands in memory of its own, or, where a state changes, boxes of it land in memory
    that was set aside; then it may come from the same device too.
    """

    value: ValueRef
    source: Device
    target: Device
    landings: tuple[Landing, ...] = ()

    @property
    def sent(self) -> ValueRef:
        """What is sent: the operand of the transfer."""
        return ValueRef(source_of(self.value.node))

    def __str__(self) -> str:
        return f"copy {self.value}{' and '.join(map(str, self.landings))} from {self.source} to {self.target}"


@dataclass(frozen=True, slots=True)
class Await:
    """Makes the computation on a device wait for what a Copy or a Load started.

    On the target it waits until that has arrived. On the source of a copy it waits until the copy has read the value,
    whose memory is written next.
    """

    started: Copy | Load
    device: Device

    def __str__(self) -> str:
        one = self.started
        what = f"load {one.number}" if isinstance(one, Load) else f"{one.value} from {one.source} to {one.target}"
        return f"await {what} on {self.device}"


@dataclass(frozen=True, slots=True)
class Release:
    """Lets go of the weights of a stage; nothing on the device reads them any more."""

    load: Load

    def __str__(self) -> str:
        return f"release load {self.load.number}"


@dataclass(frozen=True, slots=True)
class Free:
    """Lets go of a value on a device."""

    value: ValueRef
    device: Device

    def __str__(self) -> str:
        return f"free {self.value} on {self.device}"


@dataclass(frozen=True, slots=True)
class Step:
    """One node of a run: what it awaits, and what is sent and freed when it is done.

    ``scratch`` is how many bytes its kernel takes while it runs, besides operands and results.
    """

    node: Node
    awaits: tuple[Await, ...] = ()
    sends: tuple[Copy, ...] = ()
    frees: tuple[Free, ...] = ()
    scratch: int = 0

    def __str__(self) -> str:
        notes = [str(one) for one in (*self.awaits, *self.sends, *self.frees)]
        notes += [f"scratch {self.scratch}"] if self.scratch else []
        return f"%{self.node.name}: {'; '.join(notes)}" if notes else f"%{self.node.name}"


@dataclass(frozen=True, slots=True)
class Run:
    """Runs consecutive nodes of a segment on a device: all of them, or those of one stage.

    A value that is made here and not freed here stays for later instructions.
    """

    segment: Segment
    device: Device
    steps: tuple[Step, ...]

    @property
    def nodes(self) -> tuple[Node, ...]:
        """The nodes, in order."""
        return tuple(step.node for step in self.steps)

    def __str__(self) -> str:
        span = f"%{self.steps[0].node.name} to %{self.steps[-1].node.name}" if self.steps else "nothing"
        noted = [f"  {step}" for step in self.steps if step.awaits or step.sends or step.frees or step.scratch]
        return "\n".join([f"run segment {self.segment.index} on {self.device}: {span}", *noted])


@dataclass(frozen=True, slots=True)
class Output:
    """Hands out the results, which lie on the main device; nothing else is held any more."""

    values: tuple[ValueRef, ...]
    device: Device

    def __str__(self) -> str:
        return f"output {_listed(self.values)} from {self.device}"


Instruction: TypeAlias = Input | Allocate | Load | Copy | Await | Run | Release | Free | Output


@dataclass(frozen=True)
class Schedule:
    """The instructions of one call, in the order in which they are issued."""

    instructions: tuple[Instruction, ...]

    def __iter__(self) -> Iterator[Instruction]:
        return iter(self.instructions)

    def __len__(self) -> int:
        return len(self.instructions)

    def flat(self) -> Iterator[Instruction | Step]:
        """All instructions in the order in which they take effect, each run taken apart into its steps.

        A run is followed by its steps, and each step stands between what it awaits and what it sends and frees.
        """
        for instruction in self.instructions:
            yield instruction
            for step in instruction.steps if isinstance(instruction, Run) else ():
                yield from step.awaits
                yield step
                yield from step.sends
                yield from step.frees

    def __str__(self) -> str:
        return "\n".join(map(str, self.instructions))


def _listed(values: tuple[ValueRef, ...]) -> str:
    return ", ".join(map(str, values)) or "nothing"
