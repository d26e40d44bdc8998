"""Replays a schedule without computing, and says where it breaks a rule.

The state of the replay is what lies on each device (values, and the weights of each load), what is on its way, which
slots are taken, how often each memory was written, and which copies may still be reading it. What every node reads, and
what is brought where, stands in the graph; how the schedule was made is never asked. One pass over the instructions and
their steps.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator

from torch.fx import Node

from ...compiler.devices.device import Device
from ...compiler.ir.program import MOVING, placement_of
from ...compiler.ir.schedule import (
    Allocate,
    Await,
    Copy,
    Free,
    Input,
    Instruction,
    Load,
    Output,
    Release,
    Run,
    Step,
    ValueRef,
    resting_place,
)
from ...compiler.ir.split import assembles, lying_on, own_part, rounds
from ...compiler.states.parts import members, senders, weight_on
from .replay_parts import GatheredParts
from .replay_weights import Broken, LoadedWeights
from .snapshot import UNKNOWN, Snapshot, Violation

Key = tuple[ValueRef, int]
"""A value, and the place it lies on."""


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
        self.snapshot = snapshot
        self.turns = _turns(snapshot)
        self.contents = dict(_contents(snapshot))
        self.arrived: dict[Key, bool] = {}  # False while it is on its way
        self.unread: set[Key] = set()
        self.read_by_copies: dict[int, set[Key]] = defaultdict(set)  # storage → copies its device has not awaited
        self.written: Counter[int] = Counter()
        self.weights = LoadedWeights(snapshot)
        self.parts = GatheredParts(snapshot)
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
            case Allocate(value, device, like):
                yield from self.allocate(value, device, like)
            case Copy():
                yield from self.copy(one)
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
        place = self.snapshot.place(run.device)
        left = (node for node in run.nodes if (ValueRef(node), self.resting(node, place)) in self.arrived)
        self.weights.seen.update(storage for node in left for storage in self.snapshot.storages.get(node, ()))

    def step(self, run: Run, step: Step) -> Broken:
        node, place = step.node, self.snapshot.place(run.device)
        if next(self.turns, None) != (node, place) or placement_of(node).segment != run.segment.index:
            yield "run", f"it is not the turn of %{node.name} on {run.device}, or it is of another segment"
        for operand in self.snapshot.operands[node]:
            if operand in self.snapshot.weights:
                yield from self.weights.use(weight_on(self.snapshot.program, node, operand, run.device).name, place)
            else:
                yield from self.read(self.key(operand, place))
        for storage in self.snapshot.writes.get(node, ()):
            self.written[storage] += 1
            for key in self.read_by_copies[storage]:
                yield "fence", f"%{node.name} writes memory that the copy of {self.name(key)} may still be reading"
        self.arrived[ValueRef(node), self.resting(node, place)] = True

    def take_in(self, values: tuple[ValueRef, ...], device: Device) -> Broken:
        self.begun = True
        given = list(self.snapshot.program.inputs())
        if [one.node for one in values] != given or self.snapshot.place(device):
            yield (
                "input",
                f"the inputs are {', '.join(f'%{node.name}' for node in given) or 'none'}, on the main device",
            )
        self.arrived = {(ValueRef(node), 0): True for node in given}

    def allocate(self, value: ValueRef, device: Device, like: ValueRef | None) -> Broken:
        key = value, self.snapshot.place(device)
        if key in self.arrived:
            yield "land", f"{self.name(key)} is there already"
        if like is not None:
            yield from self.use((like, self.snapshot.place(members(self.snapshot.program, like.node)[0])))
        elif assembles(value.node) and (own := own_part(self.snapshot.program, value.node, device)):
            yield from self.read((ValueRef(own), self.snapshot.place(device)))
        yield from self.parts.allocate(value, device, like)
        self.arrived[key] = True

    def copy(self, copy: Copy) -> Broken:
        transfer, here, there = copy.value.node, self.snapshot.place(copy.source), self.snapshot.place(copy.target)
        if transfer.target not in MOVING or copy.target not in placement_of(transfer).group:
            yield "copy", f"{copy.value} is not what a transfer to {copy.target} makes"
            return
        key, value = (copy.value, there), copy.sent.node
        if copy.source not in senders(self.snapshot.program, transfer, copy.target):
            yield "copy", f"{copy.sent} does not come from {copy.source} to {copy.target}"
        if self.writes(value) != self.contents[transfer]:
            what = f"written {self.writes(value)} times here, and goes on after {self.contents[transfer]}"
            yield "copy", f"the memory of {copy.sent} is {what}"
        yield from self.read((copy.sent, here))
        if copy.landings:
            yield from self.use(key)
            yield from self.parts.land(copy)
            return
        if key in self.arrived or assembles(transfer):
            yield "copy", f"{copy.sent} was sent to {copy.target} before, or is a part"
        self.arrived[key] = False
        self.sent[key] = copy
        self.unread.add(key)
        self.weights.seen.update(self.snapshot.storages[value])
        for storage in self.snapshot.storages[value]:
            self.read_by_copies[storage].add(key)

    def wait(self, one: Await) -> Broken:
        started, device = one.started, one.device
        if isinstance(started, Load):
            yield from self.weights.wait(started, device)
            return
        if started.landings:
            yield from self.parts.wait(started, device)
            return
        key = started.value, self.snapshot.place(started.target)
        if self.sent.get(key) != started:
            yield "wait", f"nobody has sent this: {started}"
        if device == started.target:
            if self.arrived.get(key, True):
                yield "wait", f"{self.name(key)} is not on its way"
            self.arrived[key] = True
        else:
            yield from self.fence(started, device)

    def fence(self, started: Copy, device: Device) -> Broken:
        key = started.value, self.snapshot.place(started.target)
        reading = [self.read_by_copies[storage] for storage in self.snapshot.storages[started.sent.node]]
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

    def read(self, key: Key) -> Broken:
        """A value is read; every part of a whole must have landed."""
        yield from self.use(key)
        yield from self.parts.read(*key)

    def free(self, value: ValueRef, device: Device) -> Broken:
        key = value, self.snapshot.place(device)
        if not self.arrived.pop(key, False):
            yield "free", f"{self.name(key)} is not there, or still on its way"
        self.parts.forget(*key)
        if key in self.unread:
            self.unread.discard(key)
            yield "idle", f"nobody has read {self.name(key)}"

    def release(self, load: Load) -> Broken:
        yield from self.weights.release(load)
        place = self.snapshot.place(load.device)
        gone = {storage for name in load.weights for storage in self.weights.memory.get(name, ())}
        for state, where in self.arrived:
            if where == place and gone.intersection(self.snapshot.storages.get(state.node, ())):
                yield "slot", f"{self.name((state, where))} lies in the memory of weights that are released"

    def hand_out(self, values: tuple[ValueRef, ...], device: Device) -> Broken:
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
        said = [(one, self.resting(one.node, place)) for one in values]
        if said != list(wanted) or place:
            yield "return", f"the results are {', '.join(map(self.name, wanted)) or 'none'}, on the main device"
        for key in wanted:
            yield from self.read(key)
            self.arrived.pop(key, None)

    def end(self) -> Broken:
        if not self.returned:
            yield "return", "the schedule ends without handing out the results"
        for node, place in self.turns:
            yield "run", f"%{node.name} never runs on {self.snapshot.name(place)}"
        for key in self.arrived:
            yield "left", f"{self.name(key)} is never freed"
        yield from self.weights.end()

    def key(self, node: Node, place: int) -> Key:
        """Under which key an operand is read on a device: what was brought to others is there itself, at its source."""
        there = lying_on(node, self.snapshot.program.devices[place]) if place != UNKNOWN else node
        return ValueRef(there), self.resting(there, place)

    def resting(self, node: Node, place: int) -> int:
        """Where a value lies that is read on a device; a Python number lies at home and is seen everywhere."""
        return place if self.snapshot.storages.get(node) else self.snapshot.device[node]

    def writes(self, node: Node) -> int:
        """How often a value's memory has been written."""
        return max((self.written[storage] for storage in self.snapshot.storages.get(node, ())), default=0)

    def name(self, key: Key) -> str:
        """A value on a device, as an error shows it."""
        return f"{key[0]} on {self.snapshot.name(key[1])}"


def _elsewhere(step: Step, device: Device) -> list[Await | Copy | Free]:
    """What a step on a device says of another device."""
    awaits = [one for one in step.awaits if one.device != device]
    sends = [one for one in step.sends if one.source != device]
    return [*awaits, *sends, *(one for one in step.frees if one.device != resting_place(one.value, device))]


def _contents(snapshot: Snapshot) -> Iterator[tuple[Node, int]]:
    """How often the memory of what each transfer brings has been written where the transfer stands."""
    written: Counter[int] = Counter()
    for node in snapshot.nodes:
        if node.target in MOVING:
            (value,) = snapshot.operands[node]
            yield node, max((written[storage] for storage in snapshot.storages[value]), default=0)
        written.update(snapshot.writes.get(node, ()))


def _turns(snapshot: Snapshot) -> Iterator[tuple[Node, int]]:
    """The nodes in their order, each where its turn is: each round of a segment on one device after the other."""
    program = snapshot.program
    for nodes in (one for segment in program.segments for one in rounds(program, segment.nodes)):
        for device in members(program, nodes[0]):
            yield from ((node, snapshot.place(device)) for node in nodes)
