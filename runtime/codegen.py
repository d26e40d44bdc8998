"""Writes each run of a schedule as Python source over local variables.

There is no interpreter: a run is one function with the lines of its steps, in order: what is awaited, the operation,
what is sent, what is dropped. Operations and resident weights are bound as closure variables. The listing is what runs
and is meant to be read; each line says which module and source line it came from.
"""

from __future__ import annotations

import keyword
import math
import operator
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch.fx import Node

from ..compiler.devices.device import Device
from ..compiler.ir.aliasing import in_place
from ..compiler.ir.block_spans import internal
from ..compiler.ir.ops import RESHARD
from ..compiler.ir.program import HERE, Program, weight_name
from ..compiler.ir.schedule import Await, Copy, Load, Run, Step, ValueRef, read_on
from ..compiler.ir.targets import bounded
from ..compiler.states.parts import call_on, weight_on
from . import steps
from .block_kernels import BlockCall
from .in_place import Candidates
from .listing import RunSource, assemble
from .slots import RunSlots
from .transport import Transport

_RESERVED = object()


@dataclass
class _Writer:
    """Collects the lines of one run and the objects that they name."""

    program: Program
    run: Run
    slots: RunSlots
    candidates: Candidates
    transport: Transport
    bound: dict[str, Any] = field(default_factory=dict)
    weights: dict[str, str] = field(default_factory=dict)
    weight_names: dict[str, str] = field(default_factory=dict)
    names: dict[ValueRef, str] = field(default_factory=dict)
    places: dict[Device, torch.device] = field(default_factory=dict)
    lines: list[tuple[str, Node | None]] = field(default_factory=list)
    taken: dict[str, Any] = field(default_factory=lambda: dict.fromkeys(("slots", "run", "bind", "look"), _RESERVED))

    def __post_init__(self) -> None:
        self.freed = frozenset(free.value for step in self.run.steps for free in step.frees)
        for operand in (one for node in self.run.nodes for one in node.all_input_nodes if one.target is RESHARD):
            self.local(read_on(operand, self.run.device), operand.name)  # so that devices which share a run share code

    def write(self, text: str, node: Node | None = None) -> None:
        self.lines.append((f"        {text}", node))

    def bind(self, name: str, value: Any) -> str:
        """A name for an object, made unique among all names of the segment."""
        while self.taken.setdefault(name, value) is not value:
            name += "_"
        self.bound[name] = value
        return name

    def local(self, value: ValueRef, stem: str = "") -> str:
        if value not in self.names:
            name = _identifier(stem or value.node.name)
            while self.taken.setdefault(name, value) != value:
                name += "_"
            self.names[value] = name
        return self.names[value]

    def slot(self, number: int, name: str) -> str:
        """A slot: by its number, or by a name where several devices share the code."""
        return self.bind(f"{name}_at", number) if len(self.run.segment.group) > 1 else str(number)

    def place(self, device: Device) -> str:
        """A name for a device."""
        return self.bind(f"to_{device}", self.places.setdefault(device, device.torch))

    def expression(self, reader: Node, value: Any) -> str:
        """Source text for an argument of a node."""
        match value:
            case Node():
                return self.operand(reader, value)
            case list() | tuple() if not any(isinstance(item, (Node, list, tuple)) for item in value):
                return f"({''.join(self.expression(reader, item) + ', ' for item in value)})".replace(", )", ",)")
            case list() | tuple():
                return f"[{', '.join(self.expression(reader, item) for item in value)}]"
            case dict():
                return "{" + ", ".join(f"{k!r}: {self.expression(reader, v)}" for k, v in value.items()) + "}"
            case float() if not math.isfinite(value):
                return self.bind(f"float_{value}".replace("-", "minus_"), value)
            case torch.device():
                device = self.run.device
                return self.bind("device", device.torch) if value == HERE else self.bind("other_device", value)
            case None | bool() | int() | float() | str() | complex():
                return repr(value)
            case _:
                return self.bind(str(value).replace(".", "_").replace("torch_", ""), value)

    def operand(self, reader: Node, value: Node) -> str:
        if not weight_name(value):
            return self.local(read_on(value, self.run.device))
        weight = weight_on(self.program, reader, value, self.run.device).name
        if weight not in self.weight_names:
            self.weights[self.name_weight(weight, value.name)] = weight
        return self.weight_names[weight]

    def name_weight(self, weight: str, stem: str) -> str:
        """A name for a weight, made unique among all names of the run."""
        name = _identifier(stem)
        while self.taken.setdefault(name, weight) != weight:
            name += "_"
        self.weight_names[weight] = name
        return name

    def call(self, node: Node) -> str:
        if node.target is operator.getitem:
            return f"{self.expression(node, node.args[0])}[{self.expression(node, node.args[1])}]"
        operation, args, kwargs = call_on(node, self.run.device)
        arguments = [self.expression(node, argument) for argument in args]
        arguments += [self.keyword(key, self.expression(node, value)) for key, value in kwargs.items()]
        if self.candidates.is_looked_at(node, self.run.device):
            number = self.slot(self.candidates.numbers[node, self.run.device], f"candidate_{_identifier(node.name)}")
            forms = node.target, in_place(node.target)
            return f"look({', '.join([number, *map(self.function, forms), *arguments])})"
        target = in_place(node.target) if self.candidates.is_in_place(node, self.run.device) else operation
        return f"{self.function(target)}({', '.join(arguments)})"

    def keyword(self, key: str, value: str) -> str:
        """An argument by name; some operations have one that is a word of Python's (``from``)."""
        return f"{key}={value}" if _identifier(key) == key else f"**{{{key!r}: {value}}}"

    def function(self, target: Any) -> str:
        if isinstance(target, torch._ops.OpOverload):
            suffix = "" if target._overloadname == "default" else f"_{target._overloadname}"
            return self.bind(f"{target.namespace}_{target.overloadpacket.__name__}{suffix}", target._op)
        return self.bind(target.__name__, bounded(target))


def _identifier(name: str) -> str:
    """A node's name as that of a variable; one that is no plain word of Python's gets another."""
    plain = name.isascii() and name.isidentifier() and not keyword.iskeyword(name) and not name.startswith("__")
    return name if plain else "value_" + "".join(one if one.isascii() and one.isalnum() else "_" for one in name)


def write_run(
    program: Program,
    run: Run,
    slots: RunSlots,
    name: str,
    candidates: Candidates,
    transport: Transport,
    blocks: Sequence[BlockCall] = (),
) -> RunSource:
    """Generates the source of a run, which is its steps one to one.

    Args:
        program: what the run is of.
        run: the instruction.
        slots: where what comes from outside the run lies, and what stays after it goes.
        name: what tracebacks call the source.
        candidates: the nodes that may be computed in their operand's memory, and whether they have been looked at.
        transport: gives each copy its way.
        blocks: which steps of the run are the call of a kernel.
    """
    writer = _Writer(program, run, slots, candidates, transport)
    made, awaited = set(map(ValueRef, run.nodes)), {one.started for step in run.steps for one in step.awaits}
    coming = {one.value for one in awaited if isinstance(one, Copy) and one.target == run.device and not one.landings}
    for value in _outside(writer, made):
        if value not in coming:
            _write_read(writer, value)
    calls = {block.span.start: block for block in blocks}
    inside = {index for block in blocks for index in block.span}
    for index, step in enumerate(run.steps):
        if index in calls:
            _write_block(writer, calls[index])
        elif index not in inside:
            _write_step(writer, step)
    for value in map(ValueRef, run.nodes):
        if value not in writer.freed:
            local = writer.local(value)
            writer.write(f"slots[{writer.slot(slots.values[value], local)}] = {local}")
    if any(candidates.is_looked_at(node, run.device) for node in run.nodes):
        writer.lines.insert(0, (f"        look = slots[{candidates.slot}]", None))
    return assemble(name, run, writer.lines, writer.bound, writer.weights)


def _outside(writer: _Writer, made: Collection[ValueRef]) -> dict[ValueRef, None]:
    """The values that a run reads, sends or frees and does not make, in the order in which it first needs them."""
    found: dict[ValueRef, None] = {}
    for step in writer.run.steps:
        for operand in step.node.all_input_nodes:
            if not weight_name(operand) and (value := read_on(operand, writer.run.device)) not in made:
                found[value] = None
        found |= {copy.sent: None for copy in step.sends if copy.sent not in made}
        found |= {free.value: None for free in step.frees if free.value not in made}
    return found


def _write_step(writer: _Writer, step: Step) -> None:
    """The lines of one node: what it awaits, the call, what is sent, what is dropped."""
    for one in step.awaits:
        _write_await(writer, one)
    writer.write(f"{writer.local(ValueRef(step.node))} = {writer.call(step.node)}", step.node)
    for copy in step.sends:
        _write_copy(writer, copy)
    if step.frees:
        writer.write(f"del {', '.join(writer.local(free.value) for free in step.frees)}")


def _write_block(writer: _Writer, block: BlockCall) -> None:
    """The lines of a block: what its first step awaits, the call, what its last one sends and drops."""
    steps = writer.run.steps[block.span.start : block.span.stop]
    for one in steps[0].awaits:
        _write_await(writer, one)
    results = "".join(f"{writer.local(one)}, " for one in block.outputs)
    arguments = ", ".join(writer.operand(*pair) for pair in block.inputs)
    writer.write(f"{results}= {writer.bind('block', block.kernel)}({arguments})", steps[0].node)
    for copy in steps[-1].sends:
        _write_copy(writer, copy)
    own = internal(steps)
    dropped = [writer.local(free.value) for free in steps[-1].frees if free.value not in own]
    if dropped:
        writer.write(f"del {', '.join(dropped)}")


def _write_await(writer: _Writer, one: Await) -> None:
    if isinstance(one.started, Load):
        _write_await_load(writer, one.started)
    elif one.device != one.started.target:
        slot = writer.slots.everywhere.fences[one.started]
        writer.write(f"{writer.bind('fence', steps.fence)}(slots[{slot}], {writer.place(one.device)})")
        writer.write(f"slots[{slot}] = None")
    elif one.started.landings:
        slot = writer.slots.ends_of(one.started)[0]
        writer.write(f"slots[{slot}].wait()")
        writer.write(f"slots[{slot}] = None")
    else:
        _write_read(writer, one.started.value, ".wait()")


def _write_await_load(writer: _Writer, load: Load) -> None:
    """Names each weight of a load after the placeholder through which the run reads it."""
    stems = {
        weight_on(writer.program, node, operand, writer.run.device).name: operand.name
        for node in writer.run.nodes
        for operand in node.all_input_nodes
        if weight_name(operand)
    }
    names = "".join(f"{writer.name_weight(name, stems.get(name, 'unread'))}, " for name in load.weights)
    writer.write(f"{names}= slots[{writer.slot(writer.slots.everywhere.loads[load], 'weights')}].wait()")


def _write_read(writer: _Writer, value: ValueRef, wait: str = "") -> None:
    local = writer.local(value)
    slot = writer.slot(writer.slots.values[value], local)
    kept = f"slots[{slot}] = " if wait and value not in writer.freed else ""
    writer.write(f"{local} = {kept}slots[{slot}]{wait}")
    if value in writer.freed:
        writer.write(f"slots[{slot}] = None")


def _write_copy(writer: _Writer, copy: Copy) -> None:
    value = writer.local(copy.sent)
    memory = ""
    if copy.landings:
        whole = writer.slot(writer.slots.everywhere.values[copy.value, copy.target], f"{value}_whole")
        memory = f", slots[{whole}]"
    if copy.source == copy.target:
        boxes = writer.bind(f"boxes_of_{value}", copy.landings)
        writer.write(f"{writer.bind('fill', steps.fill_parts)}({value}{memory}, {boxes})")
        return
    slot, event = writer.slots.ends_of(copy)
    arrival = writer.slot(slot, f"{value}_to_{copy.target}")
    transport = writer.transport
    way = steps.in_parts(transport.sender_of_boxes(copy), copy) if copy.landings else transport.sender(copy)
    send = writer.bind(f"send_{value}_to_{_identifier(copy.target.name)}", way)
    writer.write(f"slots[{arrival}] = {send}({value}{memory})")
    if event is not None:
        writer.write(f"slots[{event}] = slots[{arrival}].done")
