"""How much memory each device holds while a schedule runs, to the byte; nothing is computed.

One walk over the instructions, in the order in which they take effect. Counted are the weights that stay, the slots of
those that come and go, every piece of memory that a value lies in, from the operation that makes it, or the copy that
brings it, until the last value in it is freed, and what a kernel takes while it runs.

It predicts the first call, which needs most: what may be computed in its operand's memory is computed apart there where
strides do not settle it, to be compared (see `runtime/in_place`).
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Hashable, Iterable, Mapping
from dataclasses import dataclass, field

from torch.fx import Node

from ...compiler.devices.device import Device
from ...compiler.ir.program import Program, tensors_of
from ...compiler.ir.schedule import (
    Allocate,
    Copy,
    Free,
    Input,
    Instruction,
    Lifetime,
    Load,
    Run,
    Step,
    ValueRef,
)
from ...compiler.ir.split import packed_bytes, type_on
from ...compiler.ir.value import flat, sizes_at
from ...compiler.states.parts import pieces, slot_bytes
from ..analysis.memory_needs import arriving, held_bytes
from ..analysis.scratch import apart_bytes, scratch_bytes


@dataclass(frozen=True)
class Usage:
    """The bytes on a device at its fullest moment, by what they are for.

    ``weights`` stay for the program or a phase, ``staged`` are slots for weights that come and go, ``values`` are
    inputs and intermediate results, ``scratch`` is what a kernel takes while it runs. ``node`` runs at that moment.
    """

    weights: int = 0
    staged: int = 0
    values: int = 0
    scratch: int = 0
    node: Node | None = None

    @property
    def total(self) -> int:
        """All of it together."""
        return self.weights + self.staged + self.values + self.scratch


def _packed_bytes(copy: Copy) -> int:
    """The most bytes of a box of a copy that is packed to be sent; one is at a time."""
    boxes = copy.landings if copy.source != copy.target else ()
    return packed_bytes(copy.value.node, copy.source, copy.target, boxes)


def simulate_at(program: Program, symbols: Mapping[str, int]) -> dict[Device, Usage]:
    """The fullest moment of each device in a call in which the dynamic sizes of a program are others."""
    with sizes_at({**program.symbols, **symbols}):
        return simulate(program)


def simulate(program: Program, there: Mapping[Device, Collection[str]] | None = None) -> dict[Device, Usage]:
    """The fullest moment of each device of a scheduled program, inputs that are the caller's apart.

    ``there`` names the weights that are on devices already when the call comes. Raises ValueError for a program that
    has no schedule.
    """
    if program.schedule is None:
        raise ValueError(f"{program.name} has no schedule yet: lower it first")
    walk = MemoryWalk(program)
    for device, names in (there or {}).items():
        walk.bring(device, names)
    for instruction in program.schedule:
        walk.carry_out(instruction)
    return {device: memory.fullest for device, memory in walk.on.items()}


@dataclass
class _Memory:
    """What lies on one device at a moment, and what lay there at the fullest one."""

    staged: int = 0
    weights: int = 0
    values: int = 0
    users: Counter[Hashable] = field(default_factory=Counter)  # of each piece of memory the values in it
    sizes: dict[Hashable, int] = field(default_factory=dict)
    fullest: Usage = Usage()
    most: int = 0  # in all, at that moment
    watch: Callable[[Usage], None] | None = None

    def hold(self, piece: Hashable, nbytes: int) -> None:
        """Notes one more value in a piece of memory, which is of so many bytes if it is new."""
        if not self.users[piece]:
            self.sizes[piece] = nbytes
            self.values += nbytes
        self.users[piece] += 1

    def let_go(self, piece: Hashable) -> None:
        """Notes one value less in a piece of memory."""
        self.users[piece] -= 1
        if not self.users[piece]:
            del self.users[piece]
            self.values -= self.sizes.pop(piece)

    def note(self, scratch: int = 0, node: Node | None = None) -> None:
        """Compares this moment with the fullest one so far."""
        total = self.weights + self.staged + self.values + scratch
        is_fullest = total > self.most or (total == self.most and self.fullest.node is None)
        if not is_fullest and self.watch is None:
            return
        now = Usage(self.weights, self.staged, self.values, scratch, node)
        if is_fullest:
            self.fullest, self.most = now, total  # one that says which operation runs
        if self.watch is not None:
            self.watch(now)


class MemoryWalk:
    """The memory of all devices while the instructions are walked through; ``watch`` of one is told each moment."""

    def __init__(self, program: Program) -> None:
        self.program = program
        self.pieces = pieces(program)
        slots = slot_bytes(program, known=self.pieces)
        self.on = {device: _Memory(sum(slots.get(device, ()))) for device in program.devices}
        of_weights = {tensor.storage for node in program.weight_nodes() for tensor in tensors_of(node)}
        self.of_others = of_weights | program.given_storages
        self.lying: dict[tuple[ValueRef, Device], list[Hashable]] = {}
        self.kept: dict[Device, set[str]] = defaultdict(set)

    def carry_out(self, one: Instruction) -> None:
        """What an instruction does to memory."""
        match one:
            case Input(values, device):
                for value in values:
                    self.hold(value, device, self.made(value.node, device))
            case Load():
                self.load(one)
            case Run():
                for step in one.steps:
                    self.step(step, one.device)
            case Allocate(value, device):
                (held,) = flat(type_on(value.node, device))
                self.hold(value, device, {held.storage: held.nbytes})
            case Copy():
                self.copy(one)
            case Free(value, device):
                self.free(value, device)

    def step(self, step: Step, device: Device) -> None:
        """One node: its results beside its operands and scratch, then what it sends, then what is freed."""
        node, memory = step.node, self.on[device]
        self.hold(ValueRef(node), device, self.made(node, device))
        scratch = scratch_bytes(self.program, node, device) if self.program.symbols else step.scratch
        memory.note(scratch + apart_bytes(self.program, node, device), node)
        for copy in step.sends:
            self.copy(copy)
        for free in step.frees:
            self.free(free.value, free.device)

    def made(self, node: Node, device: Device) -> dict[Hashable, int]:
        """The pieces of memory that what a node makes on a device lies in, with their bytes.

        None of them is memory of weights or of the caller.
        """
        found: dict[Hashable, int] = {}
        for tensor in flat(type_on(node, device)):
            if tensor.storage not in self.of_others:
                found.setdefault(tensor.storage, held_bytes(node, tensor))
        return found

    def copy(self, copy: Copy) -> None:
        """What arrives: in memory of its own, or, in memory that was set aside, boxes that are packed one by one."""
        if copy.landings:
            self.on[copy.source].note(_packed_bytes(copy))
        else:
            found: dict[Hashable, int] = {one.storage: arriving(one) for one in tensors_of(copy.value.node)}
            self.hold(copy.value, copy.target, found)

    def load(self, load: Load) -> None:
        """Weights that stay, each once; slots are there from the beginning."""
        if load.lifetime is not Lifetime.STAGE:
            self.bring(load.device, load.weights)

    def bring(self, device: Device, names: Iterable[str]) -> None:
        """Weights that stay on a device."""
        memory, kept = self.on[device], self.kept[device]
        memory.weights += sum(self.pieces[name][0].device_bytes for name in {*names} - kept)
        kept.update(names)
        memory.note()

    def hold(self, value: ValueRef, device: Device, found: Mapping[Hashable, int]) -> None:
        """Notes a value on a device, in pieces of memory of so many bytes."""
        if device not in self.on:
            return
        memory = self.on[device]
        self.lying[value, device] = list(found)
        for piece, nbytes in found.items():
            memory.hold(piece, nbytes)
        memory.note()

    def free(self, value: ValueRef, device: Device) -> None:
        """Lets go of a value."""
        for piece in self.lying.pop((value, device), ()):
            self.on[device].let_go(piece)
