"""What the laws say, written down a second time, straight from the design and without the code that is tested."""

from __future__ import annotations

import operator
from collections import Counter
from itertools import groupby
from typing import Any

import torch
from torch.fx import Node

from dovetail.compiler.ir.aliasing import Alias, alias_class
from dovetail.compiler.ir.program import Program, placement_of, tensors_of, weight_name
from dovetail.compiler.ir.schedule import Await, Copy, Free, Output, Schedule, Step
from dovetail.compiler.spec.devices import Device


def storages(node: Node) -> set[int]:
    return {tensor.storage for tensor in tensors_of(node)}


def device(node: Node) -> Device | None:
    return placement_of(node).device


def is_view(node: Node) -> bool:
    """Whether a node's output is a part of an operand's memory, or an item of a node's output; not computed over it."""
    return node.target is operator.getitem or bool(bases(node) and alias_class(node.target) is not Alias.COMPUTE)


def bases(node: Node) -> list[Node]:
    """The operands in whose memory a node's output lies; an op that yields nothing lies in what it writes."""
    mine = storages(node) or written(node)
    return [operand for operand in node.all_input_nodes if mine & storages(operand)]


def written(node: Node) -> set[int]:
    """The storages that a node writes, by the names of ATen's in-place ops: the first operand's."""
    if isinstance(node.target, torch._ops.OpOverload) and node.target._schema.is_mutable:
        return storages(node.all_input_nodes[0])
    return set()


def weights_behind(node: Node) -> list[str]:
    """The names of the weights that a value is a view, cast or transposition of."""
    while not (name := weight_name(node)):
        first = node.args[0] if node.args else None
        if not isinstance(first, Node) or alias_class(node.target) not in (Alias.VIEW, Alias.MAYBE):
            return []
        node = first
    return [name]


def drawing(program: Program) -> set[str]:
    """The weights that draw their readers to their home: what lies in a block, and parameters; but not numbers.

    A parameter of at most 1 MiB on the main device that is in no block, and is read between two blocks, draws nobody.
    """
    weights = [weight for weight in program.weights.values() if weight.kind != "adapter" or weight.shape]
    of_blocks = {name for block in program.blocks for name in block.weights} & {one.name for one in weights}
    reads = [
        {name for operand in node.all_input_nodes for name in weights_behind(operand)}
        for node in program.ops()
        if not is_view(node) or alias_class(node.target) not in (Alias.VIEW, Alias.MAYBE)
    ]
    turns = [index for index, names in enumerate(reads) if names & of_blocks]
    between = set().union(*reads[turns[0] : turns[-1]]) if turns and not program.is_sliced else set()
    at_main = {name for name, home in program.home.items() if home == program.devices[0]}
    small = {weight.name for weight in weights if weight.nbytes <= 2**20} - of_blocks
    return of_blocks | ({weight.name for weight in weights if weight.kind == "parameter"} - (small & between & at_main))


def placed_by(program: Program) -> set[str]:
    """The weights by which operations are placed: of those that one reads, the last that draws."""
    draws = drawing(program)
    read = ([w for operand in node.all_input_nodes for w in weights_behind(operand)] for node in program.ops())
    last = [list(dict.fromkeys(names)) for names in read]
    return {drawn[-1] for names in last if (drawn := [name for name in names if name in draws])}


def check_law_3(program: Program) -> None:
    """Every node that is no view has the device of the weight, tables apart, consumed last; views follow their base.

    A node that reads no weight may be on the device of its only readers instead.
    """
    current, draws, places = program.devices[0], drawing(program), program.places()
    for node in program.graph.nodes:
        if node.op != "call_function":
            continue
        consumed = list(dict.fromkeys(w for operand in node.all_input_nodes for w in weights_behind(operand)))
        pure = is_view(node) and alias_class(node.target) in (Alias.VIEW, Alias.MAYBE)
        drawn_by = [name for name in consumed if name in draws]
        if drawn_by and not pure:
            current = program.home[drawn_by[-1]]
        if str(node.target) in ("dovetail.landing.default", "dovetail.gather.default"):  # wholes are on the main device
            current = program.devices[0]
        if is_view(node):
            assert places[node] == places[[*bases(node), node.args[0]][0]], node
        else:
            assert device(node) == current or (not consumed and follows_readers(node)), node
    for storage in set().union(*(written(node) for node in program.ops())):
        assert len({device(node) for node in program.graph.nodes if storage in storages(node)}) == 1


def follows_readers(node: Node) -> bool:
    """Whether a node computes the same wherever it is, and all that it makes is read on its device, not outside."""
    if written(node) or torch.Tag.nondeterministic_seeded in node.target.tags:  # type: ignore[union-attr]
        return False
    readers, found = [node], []
    while readers:
        value = readers.pop()
        views = [user for user in value.users if is_view(user) and value in [*bases(user), user.args[0]][:1]]
        readers += views
        found += [user for user in value.users if user not in views]
    return bool(found) and all(user.op != "output" and device(user) == device(node) for user in found)


def crossing_bytes(program: Program) -> int:
    """Bytes that cross between devices in one call."""
    return sum(tensor.nbytes for crossing in program.crossings for tensor in tensors_of(crossing.value))


def check_law_4(program: Program) -> None:
    """Segments partition the nodes in order, there is a cut at every change of device, nothing is sent twice."""
    ops = [node for node in program.graph.nodes if node.op == "call_function"]
    assert [node for segment in program.segments for node in segment.nodes] == ops
    assert len(program.segments) == sum(1 for _ in groupby(ops, key=device))
    assert all({device(node) for node in segment.nodes} == {segment.device} for segment in program.segments)
    assert program.schedule is not None
    sent = Counter((one.value, one.target) for one in program.schedule.flat() if isinstance(one, Copy))
    assert all(count == 1 for count in sent.values())
    writes: Counter[int] = Counter()
    read = set()
    for node in program.graph.nodes:
        for operand in node.all_input_nodes:
            if not weight_name(operand) and tensors_of(operand) and device(operand) != device(node):
                read.add((operand, max(writes[storage] for storage in storages(operand)), device(node)))
        writes.update(written(node))
    assert {(value.node, value.version, target) for value, target in sent} == read


class Clockwork:
    """Devices and links of any speed, carrying out a schedule that is issued without waiting for them.

    ``takes`` says how long each instruction lasts; copies overtake each other. Whatever the speeds, a value must be
    there when it is read, and the memory that a copy reads must not be written before the copy is done.
    """

    def __init__(self, program: Program, schedule: Schedule, takes: list[int]) -> None:
        self.schedule = schedule
        self.takes = takes
        self.compute: Counter[Device] = Counter()  # until when a device computes what was issued so far
        self.made: dict[tuple[Node, Device], int] = {(node, program.main): 0 for node in program.inputs()}
        self.sent: dict[tuple[Node, int, Device], int] = {}
        self.read_until: Counter[int] = Counter()  # storage → until when copies read it
        self.writes: Counter[int] = Counter()
        self.held: Counter[Any] = Counter((node, 0, program.main) for node in program.inputs())

    def run(self) -> None:
        for index, one in enumerate(self.schedule.flat()):
            self.carry_out(one, self.takes[index % len(self.takes)])
        assert not +self.held, "something is left at the end"

    def carry_out(self, one: Any, takes: int) -> None:
        match one:
            case Copy(value, source, target, into):
                assert self.held[value.node, 0, source]
                done = self.compute[source] + takes
                if into is not None:  # nobody else may have it now, and nothing but its place may be written
                    assert self.held[into.value.node, 0, target]
                    done = max(self.compute[source], self.compute[target]) + takes
                assert self.compute[source] >= self.made[value.node, source]
                self.sent[value.node, value.version, target] = done
                for storage in storages(value.node):
                    self.read_until[storage] = max(self.read_until[storage], done)
                self.held[value.node, value.version, target] += 1
            case Await(Copy(value, _, target), where):
                self.compute[where] = max(self.compute[where], self.sent[value.node, value.version, target])
            case Step(node):
                self.compute_node(node, takes)
            case Free(value, where):
                assert self.held[value.node, value.version, where] == 1, "freed twice, or before it was there"
                del self.held[value.node, value.version, where]
            case Output(values, where):
                for value in values:
                    self.held[value.node, value.version, where if tensors_of(value.node) else device(value.node)] -= 1
                    self.check_reading(value.node, where, self.compute[where])

    def compute_node(self, node: Node, takes: int) -> None:
        where = device(node)
        assert where is not None
        begin = self.compute[where]
        self.compute[where] = begin + takes
        for operand in node.all_input_nodes:
            if not weight_name(operand):
                self.check_reading(operand, where, begin)
        for storage in written(node):
            assert self.read_until[storage] <= begin, "written while a copy may still be reading it"
            self.writes[storage] += 1
        self.made[node, where] = begin + takes
        self.held[node, 0, where] += 1

    def check_reading(self, value: Node, where: Device, begin: int) -> None:
        home = device(value)
        if not tensors_of(value) or home == where:
            assert self.made[value, home] <= begin or not tensors_of(value)
            return
        version = max(self.writes[storage] for storage in storages(value))
        assert self.sent[value, version, where] <= begin, "read before it has arrived"
