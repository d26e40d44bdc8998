"""Lowers a cut program to a schedule: loads, runs, copies, waits and frees in the order in which they are issued.

A copy starts as soon as its value is ready, a wait stands directly before the first run that needs the value, and a
value is freed directly after the last instruction that touches it on that device. Weights are loaded first, once on
each device that reads them.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import ClassVar

from torch.fx import Node

from ..compiler.aliasing import readings, writes
from ..compiler.devices import Device
from ..compiler.program import Crossing, Program, Weight, device_of, placement_of, tensors_of, weight_of
from ..compiler.schedule import Copy, Free, Instruction, Load, Return, Run, Schedule, State, Wait
from .base import Change, Pass


@dataclass(frozen=True)
class Lower(Pass):
    """Writes the schedule of a cut program."""

    name: ClassVar[str] = "schedule"
    requires: ClassVar[frozenset[str]] = frozenset({"cut"})
    ensures: ClassVar[frozenset[str]] = frozenset({"scheduled"})

    def run(self, program: Program) -> Change:
        """Issues everything but the frees, then frees each value after its last use."""
        facts = _Facts.of(program)
        instructions = [*_loads(program), *_body(program, facts)]
        program.schedule = Schedule(tuple(_with_frees(program, instructions)))
        return Change(len(program.schedule), "instructions")


@dataclass
class _Facts:
    """What segments read and yield, and which copies each makes possible."""

    reads: dict[int | None, dict[State, None]] = field(default_factory=lambda: defaultdict(dict))
    yields: dict[int | None, dict[State, None]] = field(default_factory=lambda: defaultdict(dict))
    ready: dict[int | None, list[Crossing]] = field(default_factory=lambda: defaultdict(list))
    needed: dict[int | None, list[Crossing]] = field(default_factory=lambda: defaultdict(list))
    written: set[int] = field(default_factory=set)

    @staticmethod
    def of(program: Program) -> _Facts:
        facts = _Facts()
        writers = facts._note_writers(program)
        for reader, value, version in readings(program):
            facts._note_reading(reader, value, version)
        for crossing in program.crossings:
            storages = {tensor.storage for tensor in tensors_of(crossing.value)}
            steps = [writers[storage][crossing.version - 1] for storage in storages & writers.keys() if crossing.version]
            produced = [step for step in (crossing.producer, *steps) if step is not None]
            facts.ready[max(produced, default=None)].append(crossing)
            facts.needed[crossing.consumer].append(crossing)
        return facts

    def _note_writers(self, program: Program) -> dict[int, list[int | None]]:
        """For each storage that is written the segments of its writers, in order."""
        writers: dict[int, list[int | None]] = defaultdict(list)
        for node in program.ops():
            for storage in writes(node):
                writers[storage].append(placement_of(node).segment)
        self.written = set(writers)
        return writers

    def _note_reading(self, reader: Node, value: Node, version: int) -> None:
        where, origin = placement_of(reader).segment, placement_of(value).segment
        moved = device_of(reader) != device_of(value)
        if moved or where != origin:
            self.reads[where][State(value, version if moved else 0)] = None
            self.yields[origin][State(value)] = None


def _loads(program: Program) -> Iterator[Load]:
    wanted: dict[Device, dict[Weight, None]] = {device: {} for device in program.devices}
    for node in program.weight_nodes():
        weight = weight_of(node)
        for user in node.users:
            wanted[device_of(user)][weight] = None  # type: ignore[index]
    return (Load(device, tuple(weights)) for device, weights in wanted.items() if weights)


def _body(program: Program, facts: _Facts) -> Iterator[Instruction]:
    yield from _copies(facts, None)
    for segment in program.segments:
        yield from (_wait(crossing, crossing.target) for crossing in facts.needed[segment.index])
        yield Run(segment, tuple(facts.reads[segment.index]), tuple(facts.yields[segment.index]))
        yield from _copies(facts, segment.index)
    yield from (_wait(crossing, crossing.target) for crossing in facts.needed[None])
    yield Return(tuple(facts.reads[None]), program.main)


def _copies(facts: _Facts, step: int | None) -> Iterator[Instruction]:
    """The copies that a step makes possible; memory that will be written again is read before going on."""
    for crossing in facts.ready[step]:
        yield Copy(_state(crossing), device_of(crossing.value), crossing.target)
        if facts.written & {tensor.storage for tensor in tensors_of(crossing.value)}:
            yield _wait(crossing, device_of(crossing.value))


def _state(crossing: Crossing) -> State:
    return State(crossing.value, crossing.version)


def _wait(crossing: Crossing, device: Device) -> Wait:
    return Wait(_state(crossing), device_of(crossing.value), crossing.target, device)


def _with_frees(program: Program, instructions: list[Instruction]) -> Iterator[Instruction]:
    last: dict[tuple[State, Device], int] = {}
    for index, instruction in enumerate(instructions):
        last.update(dict.fromkeys(touched(instruction), index))
    ends: dict[int, list[Free]] = defaultdict(list)
    for (state, device), index in last.items():
        ends[index].append(Free(state, device))
    for index, instruction in enumerate(instructions):
        yield instruction
        if not isinstance(instruction, Return):
            yield from ends[index]


def touched(instruction: Instruction) -> Iterator[tuple[State, Device]]:
    """The values that an instruction makes or uses, with the device they lie on."""
    match instruction:
        case Copy(value, source, target):
            yield State(value.node), source
            yield value, target
        case Wait(value, _, target, device) if device == target:
            yield value, target
        case Run(segment, reads, yields):
            yield from ((state, segment.device) for state in (*reads, *yields))
        case Return(values, device):
            yield from ((state, device) for state in values)
