"""Lowers a cut program to a schedule: everything that moves, waits, is loaded or freed, and the node at which it does.

A copy is sent by the step that makes its value what it is then; it is awaited by the first step that reads it. A value
is freed by the step that touches it last on that device, an input that nobody reads at once. Weights that stay on a
device are loaded first. Those that rest elsewhere are loaded directly before the stage that reads them and awaited by
its first reader; they are released directly after the stage, or kept until the caller ends its phase. Where the memory
that a copy reads is written later, the step that writes it first waits for the copy.

One pass over the nodes, and one over all readings.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar

from torch.fx import Node

from ..compiler.ir.aliasing import makers_of, readings, writers_of
from ..compiler.ir.ops import GATHER, LANDING
from ..compiler.ir.program import Crossing, Program, Segment, device_of, placement_of, tensors_of
from ..compiler.ir.schedule import (
    Await,
    Copy,
    Free,
    Input,
    Instruction,
    Landing,
    Lifetime,
    Load,
    Output,
    Release,
    Run,
    Schedule,
    State,
    Step,
    resting_place,
)
from ..compiler.spec.devices import Device
from .analysis.liveness import ending_at, last_touches
from .analysis.scratch import scratch_bytes
from .analysis.stages import stages
from .base import Change, Pass


@dataclass(frozen=True)
class Lower(Pass):
    """Writes the schedule of a cut program."""

    name: ClassVar[str] = "schedule"
    requires: ClassVar[frozenset[str]] = frozenset({"cut"})
    ensures: ClassVar[frozenset[str]] = frozenset({"scheduled"})

    def run(self, program: Program) -> Change:
        """Collects what happens at each node, then lists stage after stage."""
        program.schedule = Schedule(tuple(_Lowering(program).instructions()))
        return Change(len(program.schedule), "instructions")


@dataclass(frozen=True, eq=False)
class _Stage:
    """Nodes of a segment whose weights come and go together, and the weights that come for it."""

    segment: Segment
    nodes: tuple[Node, ...]
    weights: dict[str, Node] = field(default_factory=dict)  # by name, with their first reader


class _Lowering:
    """What happens at which node; the placeholders stand for the beginning of the call, the output for its end."""

    def __init__(self, program: Program) -> None:
        self.program = program
        self.order = {node: index for index, node in enumerate(program.graph.nodes)}
        self.stages = [
            _Stage(segment, nodes)
            for segment in program.segments
            for nodes in stages(program, segment.nodes, segment.device)
        ]
        self.stage_of = {node: stage for stage in self.stages for node in stage.nodes}
        self.reads: dict[Node, dict[State, None]] = defaultdict(dict)  # in the state in which it lies there
        self.first: dict[tuple[Node, int, Device], Node] = {}
        for reader, value, version in readings(program):
            moved = tensors_of(value) and device_of(reader) != device_of(value)
            self.reads[reader][State(value, version if moved else 0)] = None
            self.first.setdefault((value, version, device_of(reader)), reader)
        self.awaits: dict[Node, list[Await]] = defaultdict(list)
        self.sends: dict[Node, list[Copy]] = defaultdict(list)
        self.resident: dict[Device, dict[str, None]] = {device: {} for device in program.devices}
        self._place_copies()
        self._place_weights()
        self._place_loads()
        self.frees = self._place_frees()

    def instructions(self) -> Iterator[Instruction]:
        """The whole schedule."""
        inputs = list(self.program.inputs())
        main = self.program.main
        yield Input(tuple(map(State, inputs)), main)
        yield from self.loads
        for node in inputs:
            yield from (*self.sends[node], *self.frees.get(node, ()))
        for stage in self.stages:
            yield from self._stage(stage)
        yield from self.awaits[self.program.output]
        yield Output(tuple(self.reads[self.program.output]), main)

    def _stage(self, stage: _Stage) -> Iterator[Instruction]:
        """A run, between the loading and the release of the weights that come for it."""
        run = Run(stage.segment, stage.segment.device, tuple(map(self._step, stage.nodes)))
        if not stage.weights:
            yield run
            return
        load = self.load_of[stage]
        yield load
        yield run
        if load.lifetime is Lifetime.STAGE:
            yield Release(load)

    def _step(self, node: Node) -> Step:
        return Step(
            node,
            tuple(self.awaits.get(node, ())),
            tuple(self.sends.get(node, ())),
            tuple(self.frees.get(node, ())),
            scratch_bytes(self.program, node, device_of(node)),
        )

    def _place_copies(self) -> None:
        """Each copy at the node that makes its value what it is then, awaited by its first reader there."""
        writers = writers_of(self.program)
        for crossing in self.program.crossings:
            value, source = State(crossing.value, crossing.version), device_of(crossing.value)
            sender = self._sender(crossing, writers)
            copy = Copy(value, source, crossing.target, self._landing(crossing))
            self.sends[sender].append(copy)
            later = self._next_write(crossing, writers)
            if later is not None:
                self.awaits[later].append(Await(copy, source))
            self.awaits[self.first[crossing.value, crossing.version, crossing.target]].append(
                Await(copy, crossing.target)
            )

    def _sender(self, crossing: Crossing, writers: dict[int, list[Node]]) -> Node:
        """The node that leaves a value in a state: that of its last write by then, or of its making."""
        return max(makers_of(crossing.value, crossing.version, writers), key=self.order.__getitem__)

    def _next_write(self, crossing: Crossing, writers: dict[int, list[Node]]) -> Node | None:
        """The first node that writes the memory of a value after it was sent."""
        later = [node for t in tensors_of(crossing.value) for node in writers[t.storage][crossing.version :][:1]]
        return min(later, key=self.order.__getitem__, default=None)

    def _landing(self, crossing: Crossing) -> Landing | None:
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

    def _place_weights(self) -> None:
        """Which weights stay on which device, and which come for a stage: those that nobody can see after it."""
        seen = self._seen_outside()
        for node in self.program.weight_nodes():
            weight = self.program.weight(node)
            stays = self.program.output in node.users or any(tensor.storage in seen for tensor in tensors_of(node))
            for user in sorted(node.users):
                device, stage = device_of(user), self.stage_of.get(user)
                if stays or stage is None or not self.program.stages(weight, device):
                    self.resident[device][weight.name] = None
                else:
                    stage.weights.setdefault(weight.name, user)

    def _place_loads(self) -> None:
        """The loads of what stays, and one for each stage that needs any, awaited by its first reader."""
        held = [(device, names) for device, names in self.resident.items() if names]
        self.loads = [Load(number, tuple(names), device) for number, (device, names) in enumerate(held)]
        lifetime, slot = (Lifetime.PHASE, -1) if self.program.keeps_staged else (Lifetime.STAGE, 0)
        needing = [stage for stage in self.stages if stage.weights]
        self.load_of = {
            stage: Load(number, tuple(stage.weights), stage.segment.device, lifetime, slot)
            for number, stage in enumerate(needing, len(held))
        }
        for stage, load in self.load_of.items():
            first = min(stage.weights.values(), key=self.order.__getitem__)
            self.awaits[first].append(Await(load, load.device))

    def _seen_outside(self) -> set[int]:
        """The storages of values that another stage reads, or the caller."""
        return {
            tensor.storage
            for reader, states in self.reads.items()
            for state in states
            if self.stage_of.get(state.node) is not self.stage_of.get(reader)
            for tensor in tensors_of(state.node)
        }

    def _place_frees(self) -> dict[Node, list[Free]]:
        """Each value at the last node that touches it on a device; what is handed out is not freed."""
        nodes: Sequence[Node] = [*self.program.inputs(), *self.program.ops(), self.program.output]
        ends = ending_at(last_touches(nodes, self._touched))
        return {
            node: [Free(state, device) for state, device in ended]
            for node, ended in ends.items()
            if node.op != "output"
        }

    def _touched(self, node: Node) -> Iterator[tuple[State, Device]]:
        """The values that a node makes, reads or sends, with the device they lie on."""
        for state in self.reads[node]:
            yield state, resting_place(state, device_of(node))
        for copy in self.sends[node]:
            yield State(copy.value.node), copy.source
        if node.op != "output":
            yield State(node), device_of(node)


def _columns(part: Any) -> int:
    return tensors_of(part)[0].sizes[-1]
