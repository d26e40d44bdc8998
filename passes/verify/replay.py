"""Replays a schedule without computing, and says where it breaks a rule.

The replay knows what lies on each device, what is on its way, how often each memory was written, and which copies may
still be reading it. It derives what every node reads from the graph and never asks how the schedule was made.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator
from itertools import accumulate

from torch.fx import Node

from ...compiler.ir.ops import GATHER
from ...compiler.ir.program import Segment, Weight, tensors_of
from ...compiler.ir.schedule import Copy, Free, Instruction, Landing, Load, Release, Return, Run, State, Wait
from ...compiler.spec.devices import Device
from .snapshot import Evidence, Violation

Key = tuple[Node, int, int]
"""A value, its state and the place it lies on."""

Broken = Iterator[tuple[str, str]]
"""The names of rules that an instruction breaks, each with what is wrong."""


def replay(evidence: Evidence) -> Iterator[Violation]:
    """Every violation of the rules of a schedule, in the order of its instructions."""
    schedule = evidence.program.schedule
    assert schedule is not None
    machine = _Machine(evidence)
    for index, instruction in enumerate(schedule):
        for rule, problem in machine.step(instruction):
            yield Violation(rule, problem, instruction=index)
    for rule, problem in machine.end():
        yield Violation(rule, problem, instruction=len(schedule) - 1)


class _Machine:
    """The state of the replay."""

    def __init__(self, evidence: Evidence) -> None:
        program = evidence.program
        self.evidence = evidence
        self.segments = iter(program.segments)
        self.crossings = {(c.value, c.version, evidence.place(c.target)) for c in program.crossings}
        self.loaded: dict[tuple[str, int], bool] = {}  # whether it was read
        self.arrived: dict[Key, bool] = {(node, 0, 0): True for node in program.inputs()}  # or is on its way
        self.unread: set[Key] = set()
        self.read_by_copies: dict[int, set[Key]] = defaultdict(set)  # storage → copies its device has not waited for
        self.written: Counter[int] = Counter()
        self.seen: set[int] = set()  # storages that are seen outside the run that makes or reads them
        self.returned = False

    def step(self, instruction: Instruction) -> Broken:
        if self.returned:
            yield "return", "it stands after the results were handed out"
        match instruction:
            case Load(device, weights):
                yield from self.load(device, weights)
            case Release(device, weights):
                yield from self.release(device, weights)
            case Copy(value, source, target, into):
                yield from self.copy(value, source, target)
                if into is not None:
                    yield from self.land(value, target, into)
            case Wait(value, source, target, device):
                yield from self.wait(value, source, target, device)
            case Run(segment, reads, yields):
                yield from self.run(segment, reads, yields)
            case Free(value, device):
                yield from self.free(value, device)
            case Return(values, device):
                yield from self.hand_out(values, device)

    def load(self, device: Device, weights: tuple[Weight, ...]) -> Broken:
        place = self.evidence.place(device)
        for weight in weights:
            if (weight.name, place) in self.loaded:
                yield "load", f"weight {weight.name} is on {device} already"
            self.loaded[weight.name, place] = False

    def release(self, device: Device, weights: tuple[Weight, ...]) -> Broken:
        place = self.evidence.place(device)
        for weight in weights:
            if not self.loaded.pop((weight.name, place), False):
                yield "load", f"weight {weight.name} was not loaded to {device}, or nothing has read it there"

    def copy(self, value: State, source: Device, target: Device) -> Broken:
        here, there = self.evidence.place(source), self.evidence.place(target)
        key = (value.node, value.version, there)
        if here != self.evidence.device[value.node]:
            yield "copy", f"{value} does not live on {source}"
        if key not in self.crossings:
            yield "copy", f"{value} does not cross to {target}"
        if key in self.arrived:
            yield "copy", f"{value} was sent to {target} before"
        if value.version != self.state(value.node):
            yield "copy", f"{value} is in state {self.state(value.node)} here"
        yield from self.use((value.node, 0, here))
        self.arrived[key] = False
        self.unread.add(key)
        for storage in self.evidence.storages[value.node]:
            self.read_by_copies[storage].add(key)

    def land(self, value: State, target: Device, into: Landing) -> Broken:
        there = self.evidence.place(target)
        yield from self.use((into.value.node, into.value.version, there))
        start, stop = into.start, into.start + into.length
        for reader in (user for user in value.node.users if self.evidence.device[user] == there):
            given = list(reader.args[1]) if reader.target is GATHER else []  # type: ignore[arg-type]
            ends = list(accumulate((tensors_of(part)[0].sizes[-1] for part in given), initial=0))
            places = [ends[at : at + 2] for at, part in enumerate(given) if part is value.node]
            if places != [[start, stop]] or reader.args[0] is not into.value.node:
                yield "land", f"{value} lands in {into}, but %{reader.name} does not gather it there"

    def wait(self, value: State, source: Device, target: Device, device: Device) -> Broken:
        key = (value.node, value.version, self.evidence.place(target))
        if self.arrived.get(key, True) or device not in (source, target):
            yield "wait", f"{value} is not on its way from {source} to {target}, or {device} is neither"
        if device == target:
            self.arrived[key] = True
        else:
            for storage in self.evidence.storages[value.node]:
                self.read_by_copies[storage].discard(key)

    def run(self, segment: Segment, reads: tuple[State, ...], yields: tuple[State, ...]) -> Broken:
        if next(self.segments, None) is not segment:
            yield "run", f"segment {segment.index} is not the one whose turn it is"
        place, made = self.evidence.place(segment.device), set(segment.nodes)
        wanted: set[Key] = set()
        for node in segment.nodes:
            for operand in self.evidence.operands[node]:
                if operand in self.evidence.weights:
                    yield from self.use_weight(self.evidence.weights[operand], place)
                elif operand not in made and (key := self.key(operand, place)) not in wanted:
                    wanted.add(key)
                    yield from self.use(key)
            if node in self.evidence.writes:
                yield from self.write(node)
        said = {(one.node, one.version, self.resting(one.node, place)) for one in reads}
        for key in said ^ wanted:
            what = "reads it and does not say so" if key in wanted else "says that it reads it and does not"
            yield "read", f"{self.name(key)}: the segment {what}"
        for one in yields:
            yield from self.make(one, place, made)

    def make(self, value: State, place: int, made: set[Node]) -> Broken:
        if value.node not in made or value.version:
            yield "yield", f"{value} is not made by this segment"
        key = (value.node, 0, self.resting(value.node, place))
        self.arrived[key] = True
        self.unread.add(key)
        self.seen.update(self.evidence.storages.get(value.node, ()))

    def write(self, node: Node) -> Broken:
        for storage in self.evidence.writes[node]:
            self.written[storage] += 1
            for key in self.read_by_copies[storage]:
                yield "fence", f"%{node.name} writes memory that the copy of {self.name(key)} may still be reading"

    def use(self, key: Key) -> Broken:
        self.unread.discard(key)
        if key not in self.arrived:
            yield "live", f"{self.name(key)} is needed and not there"
        elif not self.arrived[key]:
            yield "wait", f"{self.name(key)} is needed and still on its way"

    def use_weight(self, weight: Weight, place: int) -> Broken:
        if (weight.name, place) not in self.loaded:
            yield "load", f"weight {weight.name} is needed on {self.evidence.name(place)} and not there"
        self.loaded[weight.name, place] = True

    def free(self, value: State, device: Device) -> Broken:
        key = (value.node, value.version, self.evidence.place(device))
        if not self.arrived.pop(key, False):
            yield "free", f"{self.name(key)} is not there, or still on its way"
        if key in self.unread:
            self.unread.discard(key)
            yield "idle", f"nobody has read {self.name(key)}"

    def hand_out(self, values: tuple[State, ...], device: Device) -> Broken:
        self.returned = True
        place = self.evidence.place(device)
        wanted: dict[Key, None] = {}
        for operand in self.evidence.operands[self.evidence.program.output]:
            self.seen.update(self.evidence.storages.get(operand, ()))
            if operand in self.evidence.weights:
                yield from self.use_weight(self.evidence.weights[operand], place)
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
        for segment in self.segments:
            yield "run", f"segment {segment.index} never runs"
        for key in self.arrived:
            yield "left", f"{self.name(key)} is never freed"
        for (name, place), read in self.loaded.items():
            if not read:
                yield "load", f"nobody reads weight {name} on {self.evidence.name(place)}"
        yield from self.at_rest()

    def at_rest(self) -> Broken:
        """What is loaded for good and should not be."""
        program = self.evidence.program
        for node, weight in self.evidence.weights.items() if program.residency else ():
            for place, device in enumerate(program.devices):
                stays = (weight.name, place) in self.loaded and not self.seen.intersection(self.evidence.storages[node])
                if stays and program.stages(weight, device):
                    rests = program.residency[weight.name].value
                    yield "rest", f"weight {weight.name} rests on the {rests} and is never released on {device}"

    def key(self, node: Node, place: int) -> Key:
        """Under which key a value is read on a device: at home as it is, elsewhere in the state it was sent in."""
        resting = self.resting(node, place)
        return node, 0 if resting == self.evidence.device[node] else self.state(node), resting

    def resting(self, node: Node, place: int) -> int:
        """Where a value lies that is read on a device; a Python number lies at home and is seen everywhere."""
        return place if self.evidence.storages.get(node) else self.evidence.device[node]

    def state(self, node: Node) -> int:
        """How often a value's memory has been written."""
        return max((self.written[storage] for storage in self.evidence.storages.get(node, ())), default=0)

    def name(self, key: Key) -> str:
        """A value on a device, as an error shows it."""
        return f"{State(key[0], key[1])} on {self.evidence.name(key[2])}"
