"""Lowers a cut program to a schedule: loads, runs, copies, waits and frees in the order in which they are issued.

A copy starts as soon as its value is ready, a wait stands directly before the first run that needs the value, and a
value is freed directly after the last instruction that touches it on that device, an input that nobody reads at once.
Weights are loaded first, once on each device that reads them; those that rest elsewhere are loaded directly before
each run that reads them and released directly after it. Where the memory that a copy reads is written again later, its
own device waits for the copy too.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, ClassVar

from torch.fx import Node

from ..compiler.ir.aliasing import readings, writes
from ..compiler.ir.ops import GATHER, LANDING
from ..compiler.ir.program import Crossing, Program, Segment, Weight, device_of, placement_of, tensors_of
from ..compiler.ir.schedule import (
    Copy,
    Free,
    Instruction,
    Landing,
    Load,
    Release,
    Return,
    Run,
    Schedule,
    State,
    Wait,
    resting_place,
)
from ..compiler.spec.devices import Device
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
        instructions = [*_loads(program, facts), *_body(program, facts)]
        program.schedule = Schedule(tuple(_with_frees(program, instructions)))
        return Change(len(program.schedule), "instructions")


@dataclass
class _Facts:
    """What each step reads and leaves behind, and which copies it makes possible or needs.

    A step is the index of a segment; the inputs are there at step -1, the outputs are read one step after the last.
    """

    outputs: int
    reads: dict[int, dict[State, None]] = field(default_factory=lambda: defaultdict(dict))
    yields: dict[int, dict[State, None]] = field(default_factory=lambda: defaultdict(dict))
    ready: dict[int, list[Crossing]] = field(default_factory=lambda: defaultdict(list))
    needed: dict[int, list[Crossing]] = field(default_factory=lambda: defaultdict(list))
    writes: Counter[int] = field(default_factory=Counter)
    resident: dict[Device, dict[Weight, None]] = field(default_factory=dict)
    staged: dict[int, dict[Weight, None]] = field(default_factory=lambda: defaultdict(dict))

    @staticmethod
    def of(program: Program) -> _Facts:
        facts = _Facts(len(program.segments))
        for node in program.ops():
            facts.writes.update(writes(node))
        for reader, value, version in readings(program):
            facts._note_reading(reader, value, version)
        for crossing in program.crossings:
            facts.ready[-1 if crossing.producer is None else crossing.producer].append(crossing)
            facts.needed[facts.outputs if crossing.consumer is None else crossing.consumer].append(crossing)
        facts._note_weights(program)
        return facts

    def _note_weights(self, program: Program) -> None:
        """Which weights stay on which device, and which come for one step: those that nobody can see after it."""
        self.resident = {device: {} for device in program.devices}
        seen = {tensor.storage for states in self.yields.values() for one in states for tensor in tensors_of(one.node)}
        for node in program.weight_nodes():
            weight = program.weight(node)
            stays = program.output in node.users or any(tensor.storage in seen for tensor in tensors_of(node))
            for user in node.users:
                device = device_of(user)
                at_rest = stays or not program.stages(weight, device)
                (self.resident[device] if at_rest else self.staged[self._step(user)])[weight] = None

    def _step(self, node: Node) -> int:
        segment = placement_of(node).segment
        outside = self.outputs if node.op == "output" else -1
        return outside if segment is None else segment

    def _note_reading(self, reader: Node, value: Node, version: int) -> None:
        where, origin = self._step(reader), self._step(value)
        if where != origin:
            moved = tensors_of(value) and device_of(reader) != device_of(value)
            self.reads[where][State(value, version if moved else 0)] = None
            self.yields[origin][State(value)] = None

    def is_written_after(self, crossing: Crossing) -> bool:
        """Whether the memory that a copy reads is written again later."""
        return any(self.writes[tensor.storage] > crossing.version for tensor in tensors_of(crossing.value))


def _loads(program: Program, facts: _Facts) -> Iterator[Load]:
    return (Load(device, tuple(weights)) for device, weights in facts.resident.items() if weights)


def _body(program: Program, facts: _Facts) -> Iterator[Instruction]:
    yield from _copies(facts, -1)
    for segment in program.segments:
        yield from _waits(facts, segment.index)
        yield from _run(facts, segment)
        yield from _copies(facts, segment.index)
    yield from _waits(facts, facts.outputs)
    yield Return(tuple(facts.reads[facts.outputs]), program.main)


def _run(facts: _Facts, segment: Segment) -> Iterator[Instruction]:
    """A run between the loading and the release of the weights that come for it."""
    run = Run(segment, tuple(facts.reads[segment.index]), tuple(facts.yields[segment.index]))
    staged = tuple(facts.staged[segment.index])
    yield from (Load(segment.device, staged), run, Release(segment.device, staged)) if staged else (run,)


def _copies(facts: _Facts, step: int) -> Iterator[Copy]:
    """The copies that a step makes possible."""
    for crossing in facts.ready[step]:
        value, source = State(crossing.value, crossing.version), device_of(crossing.value)
        yield Copy(value, source, crossing.target, _landing(crossing))


def _landing(crossing: Crossing) -> Landing | None:
    """The place of a part in the whole that it is gathered into, where nothing else reads it."""
    readers = [user for user in crossing.value.users if device_of(user) == crossing.target]
    if [reader.target for reader in readers] != [GATHER]:
        return None
    out, parts = readers[0].args
    assert isinstance(out, Node)
    assert isinstance(parts, (list, tuple))
    made = placement_of(out).segment
    if out.target is not LANDING or made is None or crossing.producer is None or made >= crossing.producer:
        return None
    widths = [_columns(part) for part in parts]
    place = parts.index(crossing.value)
    return Landing(State(out), sum(widths[:place]), widths[place])


def _columns(part: Any) -> int:
    return tensors_of(part)[0].sizes[-1]


def _waits(facts: _Facts, step: int) -> Iterator[Wait]:
    """Waits for what a step needs; that step stands before the next write, so the source need not wait sooner."""
    for crossing in facts.needed[step]:
        value, source = State(crossing.value, crossing.version), device_of(crossing.value)
        if facts.is_written_after(crossing):
            yield Wait(value, source, crossing.target, source)
        yield Wait(value, source, crossing.target, crossing.target)


def _with_frees(program: Program, instructions: list[Instruction]) -> Iterator[Instruction]:
    last = {(State(node), program.main): -1 for node in program.inputs()}
    for index, instruction in enumerate(instructions):
        last.update(dict.fromkeys(touched(instruction), index))
    ends: dict[int, list[Free]] = defaultdict(list)
    for (state, device), index in last.items():
        ends[index].append(Free(state, device))
    yield from ends[-1]
    for index, instruction in enumerate(instructions):
        yield instruction
        if not isinstance(instruction, Return):
            yield from ends[index]


def touched(instruction: Instruction) -> Iterator[tuple[State, Device]]:
    """The values that an instruction makes or uses, with the device they lie on."""
    match instruction:
        case Copy(value, source, target, into):
            yield State(value.node), source
            yield value, target
            if into is not None:
                yield into.value, target
        case Wait(value, _, target, device) if device == target:
            yield value, target
        case Run(segment, reads, yields):
            yield from ((state, resting_place(state, segment.device)) for state in (*reads, *yields))
        case Return(values, device):
            yield from ((state, resting_place(state, device)) for state in values)
