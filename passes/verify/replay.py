"""Replays a schedule without computing, and says where it breaks a rule.

The state of the replay is what lies on each device (values, and the weights of each load), what is on its way, which
slots are taken, how often each memory was written, and which copies may still be reading it. What every node reads is
derived from the graph; how the schedule was made is never asked. One pass over the instructions and their steps.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator
from itertools import accumulate

from torch.fx import Node

from ...compiler.ir.ops import GATHER
from ...compiler.ir.program import placement_of, tensors_of
from ...compiler.ir.schedule import (
    Await,
    Copy,
    Free,
    Input,
    Instruction,
    Landing,
    Load,
    Output,
    Release,
    Run,
    State,
    Step,
    resting_place,
)
from ...compiler.spec.devices import Device
from .replay_weights import Broken, LoadedWeights
from .snapshot import Snapshot, Violation

Key = tuple[Node, int, int]
"""A value, its state and the place it lies on."""


def replay(snapshot: Snapshot) -> Iterator[Violation]:
    """Every violation of the rules of a schedule, in the order of its instructions."""
    schedule = snapshot.program.schedule
    assert schedule is not None
    machine = _Machine(snapshot)
    for index, instruction in enumerate(schedule):
        for rule, problem in machine.issue(instruction):
            yield Violation(rule, problem, machine.node, instruction=index)
    for rule, problem in machine.end():
        yield Violation(rule, problem, instruction=len(schedule) - 1)


class _Machine:
    """The state of the replay."""

    def __init__(self, snapshot: Snapshot) -> None:
        program = snapshot.program
        self.snapshot = snapshot
        self.ops = iter(snapshot.ops)
        self.crossings = {(c.value, c.version, snapshot.place(c.target)) for c in program.crossings}
        self.arrived: dict[Key, bool] = {}  # False while it is on its way
        self.unread: set[Key] = set()
        self.read_by_copies: dict[int, set[Key]] = defaultdict(set)  # storage → copies its device has not awaited
        self.written: Counter[int] = Counter()
        self.weights = LoadedWeights(snapshot)
        self.sent: dict[Key, Copy] = {}
        self.begun = self.returned = False
        self.node: Node | None = None  # of the step that is being carried out

    def issue(self, instruction: Instruction) -> Broken:
        """What an instruction breaks; it is carried out all the same."""
        if self.returned:
            yield "return", "it stands after the results were handed out"
        if self.begun == isinstance(instruction, Input):
            yield "input", "a schedule begins with its inputs, and has no others"
        match instruction:
            case Run():
                yield from self.run(instruction)
            case Await(Copy() as copy, device) if device == copy.target:
                yield from self.wait(instruction)
            case Await():
                yield "wait", "outside of a run, only what was sent is awaited, where it arrives"
            case _:
                yield from self.carry_out(instruction)

    def carry_out(self, one: Instruction) -> Broken:
        match one:
            case Input(values, device):
                yield from self.take_in(values, device)
            case Load():
                yield from self.weights.load(one)
            case Release(load):
                yield from self.release(load)
            case Copy(value, _, target, into):
                yield from self.copy(one)
                if into is not None:
                    yield from self.land(value, target, into)
            case Await():
                yield from self.wait(one)
            case Free(value, device):
                yield from self.free(value, device)
            case Output(values, device):
                yield from self.hand_out(values, device)

    def run(self, run: Run) -> Broken:
        self.weights.begin_run()
        for step in run.steps:
            self.node = step.node
            for one in _elsewhere(step, run.device):
                yield "run", f"%{step.node.name} runs on {run.device} and cannot do this: {one}"
            for awaited in step.awaits:
                yield from self.wait(awaited)
            yield from self.step(run, step)
            for sent in step.sends:
                yield from self.carry_out(sent)
            for freed in step.frees:
                yield from self.carry_out(freed)
        self.node = None
        left = (node for node in run.nodes if (node, 0, self.resting(node, self.snapshot.device[node])) in self.arrived)
        self.weights.seen.update(storage for node in left for storage in self.snapshot.storages.get(node, ()))

    def step(self, run: Run, step: Step) -> Broken:
        node, place = step.node, self.snapshot.place(run.device)
        if next(self.ops, None) is not node or placement_of(node).segment != run.segment.index:
            yield "run", f"%{node.name} is not the node whose turn it is, or of another segment"
        if run.device != run.segment.device:
            yield "run", f"segment {run.segment.index} runs on {run.device} and belongs on {run.segment.device}"
        for operand in self.snapshot.operands[node]:
            if operand in self.snapshot.weights:
                yield from self.weights.use(self.snapshot.weights[operand].name, place)
            else:
                yield from self.use(self.key(operand, place))
        for storage in self.snapshot.writes.get(node, ()):
            self.written[storage] += 1
            for key in self.read_by_copies[storage]:
                yield "fence", f"%{node.name} writes memory that the copy of {self.name(key)} may still be reading"
        self.arrived[node, 0, self.resting(node, place)] = True

    def take_in(self, values: tuple[State, ...], device: Device) -> Broken:
        self.begun = True
        given = list(self.snapshot.program.inputs())
        if [(one.node, one.version) for one in values] != [(node, 0) for node in given] or self.snapshot.place(device):
            yield (
                "input",
                f"the inputs are {', '.join(f'%{node.name}' for node in given) or 'none'}, on the main device",
            )
        self.arrived = {(node, 0, 0): True for node in given}

    def copy(self, copy: Copy) -> Broken:
        value, source, target = copy.value, copy.source, copy.target
        here, there = self.snapshot.place(source), self.snapshot.place(target)
        key = (value.node, value.version, there)
        if here != self.snapshot.device[value.node]:
            yield "copy", f"{value} does not live on {source}"
        if key not in self.crossings:
            yield "copy", f"{value} does not cross to {target}"
        if key in self.arrived:
            yield "copy", f"{value} was sent to {target} before"
        if value.version != self.state(value.node):
            yield "copy", f"{value} is in state {self.state(value.node)} here"
        yield from self.use((value.node, 0, here))
        self.arrived[key] = False
        self.sent[key] = copy
        self.unread.add(key)
        self.weights.seen.update(self.snapshot.storages[value.node])
        for storage in self.snapshot.storages[value.node]:
            self.read_by_copies[storage].add(key)

    def land(self, value: State, target: Device, into: Landing) -> Broken:
        there = self.snapshot.place(target)
        yield from self.use((into.value.node, into.value.version, there))
        start, stop = into.start, into.start + into.length
        for reader in (user for user in value.node.users if self.snapshot.device[user] == there):
            given = list(reader.args[1]) if reader.target is GATHER else []  # type: ignore[arg-type]
            ends = list(accumulate((tensors_of(part)[0].sizes[-1] for part in given), initial=0))
            places = [ends[at : at + 2] for at, part in enumerate(given) if part is value.node]
            if places != [[start, stop]] or reader.args[0] is not into.value.node:
                yield "land", f"{value} lands in {into}, but %{reader.name} does not gather it there"

    def wait(self, one: Await) -> Broken:
        started, device = one.started, one.device
        if isinstance(started, Load):
            yield from self.weights.wait(started, device)
            return
        key = (started.value.node, started.value.version, self.snapshot.place(started.target))
        if self.sent.get(key) != started:
            yield "wait", f"nobody has sent this: {started}"
        if device == started.target:
            if self.arrived.get(key, True):
                yield "wait", f"{self.name(key)} is not on its way"
            self.arrived[key] = True
            return
        reading = [self.read_by_copies[storage] for storage in self.snapshot.storages[started.value.node]]
        if device != started.source or not any(key in keys for keys in reading):
            yield "wait", f"{device} sends nothing to {started.target} that would still be read"
        for keys in reading:
            keys.discard(key)

    def use(self, key: Key) -> Broken:
        self.unread.discard(key)
        if key not in self.arrived:
            yield "live", f"{self.name(key)} is needed and not there"
        elif not self.arrived[key]:
            yield "wait", f"{self.name(key)} is needed and still on its way"

    def free(self, value: State, device: Device) -> Broken:
        key = (value.node, value.version, self.snapshot.place(device))
        if not self.arrived.pop(key, False):
            yield "free", f"{self.name(key)} is not there, or still on its way"
        if key in self.unread:
            self.unread.discard(key)
            yield "idle", f"nobody has read {self.name(key)}"

    def release(self, load: Load) -> Broken:
        yield from self.weights.release(load)
        place = self.snapshot.place(load.device)
        gone = {storage for name in load.weights for storage in self.weights.memory.get(name, ())}
        for node, version, where in self.arrived:
            if where == place and gone.intersection(self.snapshot.storages.get(node, ())):
                yield "slot", f"{self.name((node, version, where))} lies in the memory of weights that are released"

    def hand_out(self, values: tuple[State, ...], device: Device) -> Broken:
        self.returned = True
        self.weights.begin_run()
        place = self.snapshot.place(device)
        wanted: dict[Key, None] = {}
        for operand in self.snapshot.operands[self.snapshot.program.output]:
            self.weights.seen.update(self.snapshot.storages.get(operand, ()))
            if operand in self.snapshot.weights:
                yield from self.weights.use(self.snapshot.weights[operand].name, place)
            else:
                wanted[self.key(operand, place)] = None
        said = [(one.node, one.version, self.resting(one.node, place)) for one in values]
        if said != list(wanted) or place:
            yield "return", f"the results are {', '.join(map(self.name, wanted)) or 'none'}, on the main device"
        for key in wanted:
            yield from self.use(key)
            self.arrived.pop(key, None)

    def end(self) -> Broken:
        if not self.returned:
            yield "return", "the schedule ends without handing out the results"
        for node in self.ops:
            yield "run", f"%{node.name} never runs"
        for key in self.arrived:
            yield "left", f"{self.name(key)} is never freed"
        yield from self.weights.end()

    def key(self, node: Node, place: int) -> Key:
        """Under which key a value is read on a device: at home as it is, elsewhere in the state it was sent in."""
        resting = self.resting(node, place)
        return node, 0 if resting == self.snapshot.device[node] else self.state(node), resting

    def resting(self, node: Node, place: int) -> int:
        """Where a value lies that is read on a device; a Python number lies at home and is seen everywhere."""
        return place if self.snapshot.storages.get(node) else self.snapshot.device[node]

    def state(self, node: Node) -> int:
        """How often a value's memory has been written."""
        return max((self.written[storage] for storage in self.snapshot.storages.get(node, ())), default=0)

    def name(self, key: Key) -> str:
        """A value on a device, as an error shows it."""
        return f"{State(key[0], key[1])} on {self.snapshot.name(key[2])}"


def _elsewhere(step: Step, device: Device) -> list[Await | Copy | Free]:
    """What a step on a device says of another device."""
    awaits = [one for one in step.awaits if one.device != device]
    sends = [one for one in step.sends if one.source != device]
    return [*awaits, *sends, *(one for one in step.frees if one.device != resting_place(one.value, device))]
