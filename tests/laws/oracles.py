"""What the laws say, written down a second time, straight from the design and without the code that is tested."""

from __future__ import annotations

import operator
from collections import Counter
from typing import Any

import torch
from torch.fx import Node

from dovetail.compiler.devices.device import Device
from dovetail.compiler.ir.aliasing import Alias, alias_class
from dovetail.compiler.ir.program import Program, placement_of, tensors_of, weight_name
from dovetail.compiler.ir.schedule import Allocate, Await, Copy, Free, Output, Run, Schedule, Step, ValueRef
from dovetail.compiler.ir.state import Split

MOVES = ("dovetail.transfer.default", "dovetail.reshard.default")


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


def original(node: Node) -> Node:
    """The value that lies elsewhere as a copy, or whose parts were gathered: transfers compute nothing."""
    while str(node.target) in MOVES:
        node = node.all_input_nodes[0]
    return node


def weights_behind(node: Node) -> list[str]:
    """The names of the weights that a value is a view, cast or transposition of."""
    while not (name := weight_name(node := original(node))):
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
    drawn = of_blocks | (
        {weight.name for weight in weights if weight.kind == "parameter"} - (small & between & at_main)
    )
    return {program.weights[name].whole for name in drawn}


def placed_by(program: Program) -> set[str]:
    """The weights by which operations are placed: of those that one reads, the last that draws."""
    draws = drawing(program)
    read = ([w for operand in node.all_input_nodes for w in weights_behind(operand)] for node in program.ops())
    last = [list(dict.fromkeys(names)) for names in read]
    return {drawn[-1] for names in last if (drawn := [name for name in names if name in draws])}


def check_law_3(program: Program) -> None:
    """Every node that is no view has the device of the weight, tables apart, consumed last; views follow their base.

    A node that reads no weight may be on the device of its only readers instead. The whole of a split node is on the
    main device, which has what is not sliced.
    """
    current, draws, places = program.devices[0], drawing(program), program.places()
    for node in program.graph.nodes:
        if node.op != "call_function" or str(node.target) in MOVES:
            continue
        consumed = list(dict.fromkeys(w for operand in node.all_input_nodes for w in weights_behind(operand)))
        pure = is_view(node) and alias_class(node.target) in (Alias.VIEW, Alias.MAYBE)
        drawn_by = [name for name in consumed if name in draws]
        if drawn_by and not pure:
            current = program.home.get(drawn_by[-1], program.devices[0])
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


def group(program: Program, node: Node) -> list[Device]:
    """The devices that run a node: its own, or those that have columns of its result."""
    columns = split(node)
    if not columns:
        return [device(node) or program.devices[0]]
    return [one for one, (start, stop) in zip(program.devices, columns, strict=True) if start < stop]


def split(node: Node) -> list[tuple[int, int]]:
    """The columns of a node's result that each device of the program has; nothing where they have it whole."""
    states = [state for states in placement_of(node).states for state in states]
    assert all(isinstance(state, Split) and state.axis == len(tensors_of(node)[0].shape) - 1 for state in states)
    return [columns for state in states for segment in state.segments for columns in segment]  # type: ignore[union-attr]


def takes_part(reader: Node, value: Node) -> bool:
    """Whether a node reads on each device the part that is there: all that is split does, but matmuls."""
    both = bool(split(value) and split(reader))
    return both and str(reader.target) not in ("aten.linear.default", "dovetail.quantized_linear.default")


def whole_of(node: Node) -> Node | None:
    """What gathers the parts of which a value is the whole, or a copy of that; None where there are none."""
    while str(node.target) in MOVES:
        (source,) = node.all_input_nodes
        if split(source):
            return node
        node = source
    return None


def is_cut(program: Program, segment: list[Node], node: Node) -> bool:
    """Whether a segment ends before a node: on other devices."""
    last = segment[-1]
    return (device(last), group(program, last)) != (device(node), group(program, node))


def check_law_4(program: Program) -> None:
    """Segments partition the nodes in order, there is a cut at every change of devices, nothing is sent twice."""
    ops = [one for one in program.graph.nodes if one.op == "call_function" and str(one.target) not in MOVES]
    assert [node for segment in program.segments for node in segment.nodes] == ops
    current: list[Node] = []
    for node in ops:
        if current and is_cut(program, current, node):
            current = []
        assert current or program.segments[segment_of(node)].nodes[0] is node
        current.append(node)
    assert len(program.segments) == len({segment_of(node) for node in ops})
    for segment in program.segments:
        assert {device(node) for node in segment.nodes} == {segment.device}
        assert all(set(group(program, node)) == set(segment.group) for node in segment.nodes)
    assert program.schedule is not None
    known = contents(program)
    sent = Counter(
        (original(one.value.node), known[one.value.node], one.source, one.target)
        for one in program.schedule.flat()
        if isinstance(one, Copy)
    )
    assert sent == needed(program), "what must be sent is sent once"


def segment_of(node: Node) -> int:
    index = placement_of(node).segment
    assert index is not None
    return index


def contents(program: Program) -> dict[Node, int]:
    """For each transfer how often the memory of what it brings has been written where it stands."""
    writes: Counter[int] = Counter()
    found = {}
    for node in program.graph.nodes:
        if str(node.target) in MOVES:
            found[node] = max(writes[storage] for storage in storages(node.all_input_nodes[0]))
        writes.update(written(node))
    return found


def needed(program: Program) -> dict[tuple[Node, int, Device | None, Device | None], int]:
    """What must be sent, each once: a node, how often its memory was written, from where, and to where."""
    writes: Counter[int] = Counter()
    wanted: dict[tuple[Node, int, Device | None, Device | None], int] = {}
    changed = set().union(*(written(node) for node in program.ops()))
    for node in program.graph.nodes:
        for operand in node.all_input_nodes if str(node.target) not in MOVES else ():
            value, whole = original(operand), whole_of(operand)
            if weight_name(value) or not tensors_of(value) or takes_part(node, value):
                continue
            there, targets = whole or value, group(program, node)
            version, home = max(writes[storage] for storage in storages(there)), device(there)
            is_written = bool(changed & storages(there))
            if whole:  # each part goes into its place in the whole, that of the own device too
                at = [home] if is_written else targets
                wanted |= {(value, 0, source, target): 1 for source in group(program, value) for target in at}
            if is_written or not whole:
                wanted |= {(value, version, home, target): 1 for target in targets if target != home}
        writes.update(written(node))
    return wanted


class Clockwork:
    """Devices and links of any speed, carrying out a schedule that is issued without waiting for them.

    ``takes`` says how long each instruction lasts; copies overtake each other. Whatever the speeds, a value must be
    there when it is read, all parts of a whole must be, and the memory that a copy reads must not be written before the
    copy is done.
    """

    def __init__(self, program: Program, schedule: Schedule, takes: list[int]) -> None:
        self.program = program
        self.schedule = schedule
        self.takes = takes
        self.here: Device = program.main  # where the steps that come now run
        self.compute: Counter[Device] = Counter()  # until when a device computes what was issued so far
        self.made: dict[tuple[ValueRef, Device], int] = {(ValueRef(node), program.main): 0 for node in program.inputs()}
        self.sent: dict[tuple[ValueRef, Device, Device], int] = {}
        self.contents = contents(program)
        self.read_until: Counter[int] = Counter()  # storage → until when copies read it
        self.writes: Counter[int] = Counter()
        self.held: Counter[tuple[ValueRef, Device]] = Counter(
            (ValueRef(node), program.main) for node in program.inputs()
        )

    def run(self) -> None:
        for index, one in enumerate(self.schedule.flat()):
            self.carry_out(one, self.takes[index % len(self.takes)])
        assert not +self.held, "something is left at the end"

    def carry_out(self, one: Any, takes: int) -> None:
        match one:
            case Allocate(value, where, like):
                if like is not None:
                    self.check_reading(like.node, device(like.node) or where)
                assert not self.held[value, where]
                self.held[value, where] += 1
                self.made[value, where] = self.compute[where]
            case Copy():
                self.send(one, takes)
            case Await(Copy(value, source, target), where):
                self.compute[where] = max(self.compute[where], self.sent[value, source, target])
            case Run():
                self.here = one.device
            case Step(node):
                self.compute_node(node, takes)
            case Free(value, where):
                assert self.held[value, where] == 1, "freed twice, or before it was there"
                del self.held[value, where]
            case Output(values, where):
                for value in values:
                    self.held[value, where if tensors_of(value.node) else device(value.node) or where] -= 1
                    self.check_reading(value.node, where)

    def send(self, one: Copy, takes: int) -> None:
        value, source, target = one.value, one.source, one.target
        (sent,) = value.node.all_input_nodes
        assert self.held[ValueRef(sent), source]
        assert self.compute[source] >= self.made[ValueRef(sent), source]
        assert max(self.writes[storage] for storage in storages(sent)) == self.contents[value.node]
        self.check_reading(sent, source)
        done = self.compute[source] + takes
        if one.landings:  # nobody else may have it now, and nothing but its place may be written
            assert self.held[value, target]
            done = max(self.compute[source], self.compute[target]) + takes
        else:
            self.held[value, target] += 1
        self.sent[value, source, target] = done
        if source == target:  # a device goes on when it has copied its own part
            self.compute[target] = done
        for storage in storages(sent):
            self.read_until[storage] = max(self.read_until[storage], done)

    def compute_node(self, node: Node, takes: int) -> None:
        for operand in node.all_input_nodes:
            if not weight_name(operand):
                self.check_reading(operand, self.here)
        for storage in written(node):
            assert self.read_until[storage] <= self.compute[self.here], "written while a copy may still be reading it"
            self.writes[storage] += 1
        self.compute[self.here] += takes
        made = ValueRef(node), self.here
        self.made[made] = self.compute[self.here]
        self.held[made] += 1

    def check_reading(self, value: Node, where: Device) -> None:
        """A value that is read now on a device must be there, and may not come later than that."""
        now = self.compute[where]
        if not tensors_of(value):
            return
        while str(value.target) in MOVES and where == device(value.all_input_nodes[0]) and whole_of(value) is not value:
            (value,) = value.all_input_nodes  # which is there itself
        if str(value.target) not in MOVES:
            assert self.made[ValueRef(value), where] <= now
            return
        (source,) = value.all_input_nodes
        parts = [self.sent[ValueRef(value), one, where] for one in group(self.program, source)]
        assert max(parts) <= now, "read before it has arrived, or all its parts have"
        changed = max(self.writes[storage] for storage in storages(source))
        assert changed == self.contents[value], "read as it was before it was written"
