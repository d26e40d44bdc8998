"""Lowers a cut program to a schedule: everything that moves, waits, is loaded or freed, and the node at which it does.

A copy is sent by the step behind which its transfer stands; it is awaited by the first step that reads it. A value is
freed by the step that touches it last on that device, an input that nobody reads at once. Weights that stay on a
device are loaded first. Those that rest elsewhere are awaited by their first reader in a stage. What is kept until the
caller ends its phase is loaded directly before the stage. The rest comes through the slots of its device: its load is
started when the slot is released by the stage that had it before, or at the beginning of the call. How much is kept and
how many slots there are is decided by what the device has left beside its values, which a first schedule tells. Where
the memory that a copy reads is written later, the step that writes it first waits for the copy.

One pass over the nodes, and one over all readings.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import pairwise
from typing import ClassVar, TypeAlias

from torch.fx import Node

from ...compiler.devices.device import Device
from ...compiler.ir.aliasing import writers_of
from ...compiler.ir.block_spans import COMPILED, with_blocks_whole
from ...compiler.ir.program import IN_PARTS, MOVING, Program, device_of, placement_of, tensors_of, weight_name
from ...compiler.ir.schedule import (
    Allocate,
    Await,
    Copy,
    Free,
    Input,
    Instruction,
    Lifetime,
    Output,
    Release,
    Run,
    Schedule,
    Step,
    ValueRef,
    read_on,
    resting_place,
)
from ...compiler.ir.split import (
    assembles,
    first_reader,
    gathered,
    is_late,
    is_shared,
    landings_of,
    maker_of,
    rounds,
    source_of,
    split_of,
)
from ...compiler.states.parts import members, pieces, senders, weight_on
from ..analysis.liveness import ending_at, last_touches
from ..analysis.scratch import scratch_bytes
from ..analysis.stages import Stages, most_together
from ..infra.base import Change, Pass
from ..simulate.memory import simulate
from ..streaming.loads import Loads, Pieces, Stage, coming_of, decide, rooms_of
from ..streaming.spread import slot_of


@dataclass(frozen=True)
class Lower(Pass):
    """Writes the schedule of a cut program."""

    name: ClassVar[str] = "schedule"
    requires: ClassVar[frozenset[str]] = frozenset({"cut"})
    ensures: ClassVar[frozenset[str]] = frozenset({"scheduled"})

    def run(self, program: Program) -> Change:
        """Collects what happens at each node, then lists stage after stage."""
        lowering = _Lowering(program)
        program.schedule = lowering.schedule()
        if lowering.is_streaming:
            values = {device: usage.values + usage.scratch for device, usage in simulate(program).items()}
            lowering = lowering.refined(values)
            lowering.stream(values)
            program.schedule = lowering.schedule()
        return Change(len(program.schedule), "instructions")


Turn: TypeAlias = tuple[Node, Device]
"""A node on one of the devices that run it; the placeholders and the output are on the main device."""


@dataclass(frozen=True)
class Handing:
    """Where a device sends what it has of a value to what is put together of it, once memory for that is there."""

    made: ValueRef
    value: ValueRef
    device: Device


@dataclass(frozen=True)
class Gathered:
    """Where all parts of a whole have landed on a device."""

    value: ValueRef
    device: Device


Between: TypeAlias = Allocate | Handing | Gathered
"""What happens between stages: a whole is allocated, a part is sent, or all have landed."""

Site: TypeAlias = Turn | Between
"""Where something happens: at a node's turn, or between stages."""


class _Lowering:
    """What happens at which site; the placeholders stand for the beginning of the call, the output for its end."""

    def __init__(self, program: Program, most: dict[Device, int] | None = None) -> None:
        self.program = program
        stages = Stages(program, most or {})
        self.stages = [
            Stage(segment, device, nodes)
            for segment in program.segments
            for nodes_together in rounds(program, segment.nodes)
            for device in segment.group
            for nodes in stages.of(nodes_together, device)
        ]
        self.stage_of = {(node, stage.device): stage for stage in self.stages for node in stage.nodes}
        self.fetched = set(self._fetched())
        self.before = self._place_wholes()
        self.sites = list(self._in_order())
        self.order = {site: index for index, site in enumerate(self.sites)}
        self.reads: dict[Turn, dict[ValueRef, None]] = defaultdict(dict)
        self.first: dict[tuple[Node, Device], Turn] = {}  # of each value that is read on a device
        self._note_readings()
        self.awaits: dict[Site, list[Await]] = defaultdict(list)
        self.sends: dict[Site, list[Copy]] = defaultdict(list)
        self.resident: dict[Device, dict[str, None]] = {device: {} for device in program.devices}
        self._place_copies()
        self._place_weights()
        self.loads = Loads(self.stages, self.resident, {})
        self.loaded: dict[Site, list[Await]] = {}
        self.frees = self._place_frees()

    @property
    def is_streaming(self) -> bool:
        """Whether weights come for stages."""
        return any(stage.weights for stage in self.stages)

    def refined(self, values: Mapping[Device, int]) -> _Lowering:
        """The same with finer stages on devices that have no room for a slot beside their values, if there are any."""
        known = pieces(self.program)
        rooms, slots = self._rooms(known, values), self._slots(known)
        short = {device: rooms[device] - slot for device, slot in slots.items() if slot > rooms[device]}
        if not short:
            return self
        finest = _Lowering(self.program, dict.fromkeys(short, 0))
        rooms, slots = finest._rooms(known, values), finest._slots(known)
        gaining = [device for device, left in short.items() if rooms[device] - slots.get(device, 0) > left]
        most = {device: most_together(rooms[device], slots.get(device, 0)) for device in gaining}
        return _Lowering(self.program, most)

    def _rooms(self, known: Pieces, values: Mapping[Device, int]) -> dict[Device, int]:
        """The bytes for weights that come and go on each device."""
        return rooms_of(self.program, known, self.resident, values)

    def _slots(self, known: Pieces) -> dict[Device, int]:
        """The bytes of a slot that takes the weights of any stage of a device."""
        return {device: slot_of(coming) for device, coming in coming_of(known, self.stages).items()}

    def stream(self, values: Mapping[Device, int]) -> None:
        """Decides what is kept and how many slots there are, where values take so many bytes of each device."""
        streaming = decide(self.program, self.stages, self.resident, values)
        self.loads = Loads(self.stages, self.resident, streaming)

    def schedule(self) -> Schedule:
        """All instructions, with the loads as they are decided by now."""
        schedule = self._lowered()
        return with_blocks_whole(self.program, schedule) if COMPILED in self.program.facts else schedule

    def _lowered(self) -> Schedule:
        self.loaded = defaultdict(list)
        for stage, loads in self.loads.of.items():
            for load in loads:
                first = min((stage.weights[name] for name in load.weights), key=self._at)  # type: ignore[arg-type]
                self.loaded[first].append(Await(load, load.device))  # type: ignore[index]
        return Schedule(tuple(self._instructions()))

    def _instructions(self) -> Iterator[Instruction]:
        main, output = self.program.main, (self.program.output, self.program.main)
        inputs = [(node, main) for node in self.program.inputs()]
        yield Input(tuple(ValueRef(node) for node, _ in inputs), main)
        yield from self.loads.resident
        yield from self.loads.ahead.get(None, ())
        for site in inputs:
            yield from (*self.sends[site], *self.frees.get(site, ()))
        for stage in self.stages:
            yield from self._wholes(stage)
            yield from self._stage(stage)
        yield from self._wholes(None)
        yield from self.awaits[output]
        yield Output(tuple(self.reads[output]), main)

    def _wholes(self, stage: Stage | None) -> Iterator[Instruction]:
        """What stands before a stage, of wholes whose parts were made before it, or are made in it."""
        for site in self.before.get(stage, ()):
            yield from (site,) if isinstance(site, Allocate) else self.awaits[site]
            yield from (*self.sends[site], *self.frees.get(site, ()))

    def _place_wholes(self) -> dict[Stage | None, list[Between]]:
        """What happens between stages, by the stage before which it does.

        A whole that the main device alone reads is allocated before the first stage that makes a part, so that parts
        are sent as they are made, and freed. One that several read is allocated when all parts are made, for what they
        are made of may be as large. It is gathered before the first stage that reads it on its device, or sends it on.
        """
        first = {node: stage for stage in reversed(self.stages) for node in stage.nodes}
        last = {node: stage for stage in self.stages for node in stage.nodes}
        following = dict(pairwise([*self.stages, None]))
        handed, landed, allocated = (defaultdict[Stage | None, list[Between]](list) for _ in range(3))
        for transfer in filter(assembles, self.program.transfers()):
            whole, value = ValueRef(transfer), source_of(transfer)
            after = following[last[value]] if value in last else self.stages[0]  # behind the inputs
            group = members(self.program, transfer)
            if is_late(self.program, transfer):
                like = ValueRef(value) if _is_dynamic(value) else None
                handed[after] += [Allocate(whole, device, like) for device in group]
                handed[after] += [Handing(whole, ValueRef(value), one) for one in members(self.program, value)]
            else:
                allocated[first[value]].append(Allocate(whole, group[0], _like(value)))
            for device in group:
                landed[self._stage_of_reader(transfer, device, first)].append(Gathered(whole, device))
        fetching = self._place_fetching(first)
        return {one: [*handed[one], *landed[one], *allocated[one], *fetching[one]] for one in (*self.stages, None)}

    def _fetched(self) -> Iterator[Node]:
        """What a device fetches when it comes to read it, for others have gone on to the next micro-batch by then.

        Sent when it is made it would land beside the part that the device computes. What is written later is sent.
        """
        if IN_PARTS not in self.program.facts:
            return
        writers = writers_of(self.program)
        for transfer in self.program.transfers():
            later = (node for one in tensors_of(source_of(transfer)) for node in writers[one.storage])
            if not any(transfer < node for node in later):
                yield transfer

    def _place_fetching(self, first: Mapping[Node, Stage]) -> dict[Stage | None, list[Between]]:
        """Where devices fetch what they read: directly before the first stage that does."""
        found = defaultdict[Stage | None, list[Between]](list)
        for transfer in filter(self.fetched.__contains__, self.program.transfers()):
            found[first.get(min(transfer.users))].append(_fetching(transfer))
        return found

    def _stage_of_reader(self, whole: Node, device: Device, first: Mapping[Node, Stage]) -> Stage | None:
        """The first stage with a reader of a whole on a device, or of what is sent on from there; None for results.

        What is sent on is read by other devices of a group first.
        """
        moving = [one for one in whole.users if one.target in MOVING] if device == device_of(whole) else []
        readers = [one for one in whole.users if one.target not in MOVING and device in members(self.program, one)]
        reader = min([*readers, *map(first_reader, moving)])
        return first.get(reader) if moving else self.stage_of.get((reader, device))

    def _in_order(self) -> Iterator[Site]:
        """All sites in the order in which they are issued."""
        yield from ((node, self.program.main) for node in self.program.inputs())
        for stage in self.stages:
            yield from self.before.get(stage, ())
            yield from ((node, stage.device) for node in stage.nodes)
        yield from self.before.get(None, ())
        yield self.program.output, self.program.main

    def _note_readings(self) -> None:
        """What is read at each site, and where each value is read first."""
        for reader in (*self.program.ops(), self.program.output):
            for device in members(self.program, reader):
                for value in reader.all_input_nodes:
                    if not weight_name(value):
                        self._note_reading((reader, device), read_on(value, device))

    def _note_reading(self, turn: Turn, read: ValueRef) -> None:
        self.reads[turn][read] = None
        known = self.first.setdefault((read.node, turn[1]), turn)
        if self.order[turn] < self.order[known]:
            self.first[read.node, turn[1]] = turn

    def _stage(self, stage: Stage) -> Iterator[Instruction]:
        """A run, between the loading of what is kept and the release of what is not, whose slot is filled again."""
        run = Run(stage.segment, stage.device, tuple(self._step(node, stage.device) for node in stage.nodes))
        loads = self.loads.of.get(stage, ())
        yield from (load for load in loads if load.lifetime is Lifetime.PHASE)
        yield run
        for load in loads:
            if load.lifetime is Lifetime.STAGE:
                yield Release(load)
        yield from self.loads.ahead.get(stage, ())

    def _step(self, node: Node, device: Device) -> Step:
        site = node, device
        return Step(
            node,
            (*self.awaits.get(site, ()), *self.loaded.get(site, ())),
            tuple(self.sends.get(site, ())),
            tuple(self.frees.get(site, ())),
            scratch_bytes(self.program, node, device),
        )

    def _place_copies(self) -> None:
        """Each copy where its transfer stands in the graph, awaited by the first reader."""
        writers = writers_of(self.program)
        for transfer in self.program.transfers():
            if assembles(transfer):
                self._place_gather(transfer)
                continue
            later = self._next_write(transfer, writers)
            for target in placement_of(transfer).group:
                for source in senders(self.program, transfer, target):
                    copy = Copy(ValueRef(transfer), source, target)
                    self.sends[_fetching(transfer) if transfer in self.fetched else _sender(transfer)].append(copy)
                    if later is not None:
                        self.awaits[later].append(Await(copy, source))
                    self.awaits[self.first[transfer, target]].append(Await(copy, target))

    def _place_gather(self, transfer: Node) -> None:
        """Sends what devices have of a value into its places on each that gets some, as soon as that has memory."""
        value, whole = source_of(transfer), ValueRef(transfer)
        for target in members(self.program, transfer):
            for device in senders(self.program, transfer, target):
                copy = Copy(whole, device, target, landings_of(transfer, device, target))
                site: Site = (
                    Handing(whole, ValueRef(value), device) if is_late(self.program, transfer) else (value, device)
                )
                self.sends[site].append(copy)
                if device != target:
                    self.awaits[Gathered(whole, target)].append(Await(copy, target))

    def _next_write(self, transfer: Node, writers: dict[int, list[Node]]) -> Site | None:
        """The first site that writes the memory of a value after it was sent."""
        written = (node for one in tensors_of(source_of(transfer)) for node in writers[one.storage])
        later = ((node, device_of(node)) for node in written if transfer < node)
        return min(later, key=self.order.__getitem__, default=None)

    def _place_weights(self) -> None:
        """Which weights stay on which device, and which come for a stage: those that nobody can see after it."""
        seen = self._seen_outside()
        program = self.program
        for node in program.weight_nodes():
            stays = program.output in node.users or any(tensor.storage in seen for tensor in tensors_of(node))
            readers = ((user, device) for user in node.users for device in members(program, user))
            for site in sorted(readers, key=self._at):
                weight, stage = weight_on(program, site[0], node, site[1]), self.stage_of.get(site)
                if stays or stage is None or not program.stages(weight, site[1]):
                    self.resident[site[1]][weight.name] = None
                else:
                    stage.weights.setdefault(weight.name, site)

    def _at(self, site: Site) -> int:
        return self.order[site]

    def _seen_outside(self) -> set[int]:
        """The storages of values that another stage reads, or the caller, or that are sent."""
        sent = {tensor.storage for one in self.program.transfers() for tensor in tensors_of(source_of(one))}
        return sent | {
            tensor.storage
            for site, values in self.reads.items()
            for value in values
            if self._made_in(value, site) is not self.stage_of.get(site)
            for tensor in tensors_of(value.node)
        }

    def _made_in(self, value: ValueRef, site: Turn) -> Stage | None:
        """The stage that makes what a site reads, by itself or as its part."""
        return self.stage_of.get((value.node, site[1] if is_shared(value.node) else device_of(value.node)))

    def _place_frees(self) -> dict[Site, list[Free]]:
        """Each value at the last site that touches it on a device; what is handed out is not freed."""
        ends = ending_at(last_touches(self.sites, self._touched))
        output = self.program.output, self.program.main
        return {
            site: [Free(value, device) for value, device in ended] for site, ended in ends.items() if site != output
        }

    def _touched(self, site: Site) -> Iterator[tuple[ValueRef, Device]]:
        """The values that a site makes, reads or sends, with the device they lie on."""
        if isinstance(site, Allocate):
            yield site.value, site.device
            if site.like is not None:
                yield site.like, members(self.program, site.like.node)[0]
            return
        if isinstance(site, Gathered):
            yield site.value, site.device
            return
        if isinstance(site, Handing):
            yield from ((site.value, site.device) for _ in self.sends[site])
            return
        node, device = site
        for value in self.reads[site]:
            yield value, resting_place(value, device)
        for copy in self.sends[site]:
            yield copy.sent, copy.source
        if node.op != "output":
            yield ValueRef(node), device


def _sender(transfer: Node) -> Site:
    """The site behind which a transfer stands: what makes its value what it is there, or has gathered it."""
    value, maker = source_of(transfer), maker_of(transfer)
    return Gathered(ValueRef(value), device_of(value)) if split_of(maker) else (maker, device_of(value))


def _fetching(transfer: Node) -> Handing:
    """The site at which a device fetches a value."""
    value = source_of(transfer)
    return Handing(ValueRef(transfer), ValueRef(value), device_of(value))


def _is_dynamic(node: Node) -> bool:
    """Whether sizes of a value differ from call to call."""
    return not all(isinstance(size, int) for tensor in tensors_of(node) for size in tensor.shape)


def _like(node: Node) -> ValueRef | None:
    """A whole value of the leading sizes of a split one that are not known: what the first operation of it reads."""
    if not _is_dynamic(node):
        return None
    while parts := [one for one in node.all_input_nodes if split_of(one)]:
        node = parts[0]
    like = next(one for one in node.all_input_nodes if not weight_name(one))
    return ValueRef(gathered(like))  # which is there before it is brought elsewhere
