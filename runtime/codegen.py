"""Writes each run of a schedule as Python source over local variables.

There is no interpreter: a run is one function with the lines of its steps, in order: what is awaited, the operation,
what is sent, what is dropped. Operations and resident weights are bound as closure variables. The listing is what runs
and is meant to be read; each line says which module and source line it came from.
"""

from __future__ import annotations

import itertools
import keyword
import linecache
import math
import operator
import textwrap
import weakref
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import torch
from torch.fx import Node

from ..compiler.ir.aliasing import in_place
from ..compiler.ir.program import HERE, device_of, origin_of, weight_name
from ..compiler.ir.schedule import Await, Copy, Load, Run, State, Step
from ..compiler.ir.targets import bounded
from ..compiler.spec.devices import Device
from . import gather as _gathering  # noqa: F401  (the kernels of operations that segments may name)
from . import steps
from .in_place import Candidates
from .slots import RunSlots

Readings = Mapping[tuple[Node, Node], int]
"""For a reader and what it reads the version of it; absent means 0."""


_RESERVED = object()


@dataclass
class RunSource:
    """The generated function of one run.

    ``code`` defines ``bind(...)``, whose parameters are ``bound`` and the names of ``weights``; what it returns takes
    the list of slots, and finds there the weights that only come for it. ``text`` is the same with comments, for
    people: what they say comes from the program, which may be a stranger's, so they are never compiled. ``lines`` maps
    line numbers of both to nodes.
    """

    name: str
    code: str
    text: str
    bound: dict[str, Any]
    weights: dict[str, Node]
    lines: dict[int, Node]
    number: int = field(default_factory=itertools.count(1).__next__)

    def bind(self, weights: Mapping[str, torch.Tensor]) -> Callable[[list[Any]], None]:
        """The function over its weights; binding other weights compiles nothing."""
        return self._function(**self.bound, **weights)  # type: ignore[no-any-return]

    @cached_property
    def _function(self) -> Callable[..., Any]:
        namespace: dict[str, Any] = {}
        lines = self.text.splitlines(keepends=True)
        linecache.cache[self.filename] = (len(self.text), None, lines, self.filename)
        weakref.finalize(self, linecache.cache.pop, self.filename, None)
        exec(compile(self.code, self.filename, "exec"), namespace)
        return namespace["bind"]  # type: ignore[no-any-return]

    @property
    def filename(self) -> str:
        """The name under which tracebacks show this source; no other source has it, as long as the process lives."""
        return f"<dovetail {self.name} #{self.number}>"


@dataclass
class _Writer:
    """Collects the lines of one run and the objects that they name."""

    run: Run
    slots: RunSlots
    versions: Readings
    candidates: Candidates
    bound: dict[str, Any] = field(default_factory=dict)
    weights: dict[str, Node] = field(default_factory=dict)
    weight_names: dict[Node, str] = field(default_factory=dict)
    names: dict[State, str] = field(default_factory=dict)
    places: dict[Device, torch.device] = field(default_factory=dict)
    lines: list[tuple[str, Node | None]] = field(default_factory=list)
    taken: dict[str, Any] = field(default_factory=lambda: dict.fromkeys(("slots", "run", "bind", "look"), _RESERVED))

    def __post_init__(self) -> None:
        self.freed = frozenset(free.value for step in self.run.steps for free in step.frees)

    def write(self, text: str, node: Node | None = None) -> None:
        self.lines.append((f"        {text}", node))

    def bind(self, name: str, value: Any) -> str:
        """A name for an object, made unique among all names of the segment."""
        while self.taken.setdefault(name, value) is not value:
            name += "_"
        self.bound[name] = value
        return name

    def local(self, state: State) -> str:
        if state not in self.names:
            name = _identifier(state.node.name) + (f"_v{state.version}" if state.version else "")
            while self.taken.setdefault(name, state) != state:
                name += "_"
            self.names[state] = name
        return self.names[state]

    def state(self, reader: Node, value: Node) -> State:
        moved = device_of(value) != self.run.device
        return State(value, self.versions.get((reader, value), 0) if moved else 0)

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
            return self.local(self.state(reader, value))
        if value not in self.weight_names:
            self.weights[self.name_weight(value)] = value
        return self.weight_names[value]

    def name_weight(self, value: Node) -> str:
        """A name for a weight, made unique among all names of the segment."""
        name = _identifier(value.name)
        while self.taken.setdefault(name, value) is not value:
            name += "_"
        self.weight_names[value] = name
        return name

    def call(self, node: Node) -> str:
        if node.target is operator.getitem:
            return f"{self.expression(node, node.args[0])}[{self.expression(node, node.args[1])}]"
        arguments = [self.expression(node, argument) for argument in node.args]
        arguments += [self.keyword(key, self.expression(node, value)) for key, value in node.kwargs.items()]
        if self.candidates.is_looked_at(node):
            number, forms = self.candidates.numbers[node], (node.target, in_place(node.target))
            return f"look({', '.join([str(number), *map(self.function, forms), *arguments])})"
        target = in_place(node.target) if self.candidates.is_in_place(node) else node.target
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


def write_run(run: Run, slots: RunSlots, versions: Readings, name: str, candidates: Candidates) -> RunSource:
    """Generates the source of a run, which is its steps one to one.

    Args:
        run: the instruction.
        slots: where what comes from outside the run lies, and what stays after it goes.
        versions: which version of a value from another device each node reads, where it is not 0.
        name: what tracebacks call the source.
        candidates: the nodes that may be computed in their operand's memory, and whether they have been looked at.
    """
    writer = _Writer(run, slots, versions, candidates)
    made, awaited = set(run.nodes), {one.started for step in run.steps for one in step.awaits}
    coming = {copy.value for copy in awaited if isinstance(copy, Copy) and copy.target == run.device}
    for state in _outside(writer, made):
        if state not in coming:
            _write_read(writer, state)
    for step in run.steps:
        _write_step(writer, step)
    for node in run.nodes:
        if State(node) not in writer.freed:
            writer.write(f"slots[{slots.values[State(node)]}] = {writer.local(State(node))}")
    if any(map(candidates.is_looked_at, run.nodes)):
        writer.lines.insert(0, (f"        look = slots[{candidates.slot}]", None))
    return _assemble(writer, name)


def _outside(writer: _Writer, made: Collection[Node]) -> dict[State, None]:
    """The values that a run reads or sends and does not make, in the order in which it first needs them."""
    found: dict[State, None] = {}
    for step in writer.run.steps:
        for operand in step.node.all_input_nodes:
            if operand not in made and not weight_name(operand):
                found[writer.state(step.node, operand)] = None
        found |= {State(copy.value.node): None for copy in step.sends if copy.value.node not in made}
    return found


def _write_step(writer: _Writer, step: Step) -> None:
    """The lines of one node: what it awaits, the call, what is sent, what is dropped."""
    node = step.node
    for one in step.awaits:
        _write_await(writer, one)
    writer.write(f"{writer.local(State(node))} = {writer.call(node)}", node)
    for copy in step.sends:
        _write_copy(writer, copy)
    if step.frees:
        writer.write(f"del {', '.join(writer.local(free.value) for free in step.frees)}")


def _write_await(writer: _Writer, one: Await) -> None:
    if isinstance(one.started, Load):
        names = "".join(f"{writer.name_weight(writer.slots.nodes[name])}, " for name in one.started.weights)
        writer.write(f"{names}= slots[{writer.slots.loads[one.started]}].wait()")
    elif one.device == one.started.target:
        _write_read(writer, one.started.value, ".wait()")
    else:
        slot = writer.slots.fences[one.started]
        writer.write(f"{writer.bind('fence', steps.fence)}(slots[{slot}], {writer.place(one.device)})")
        writer.write(f"slots[{slot}] = None")


def _write_read(writer: _Writer, state: State, wait: str = "") -> None:
    slot = writer.slots.values[state]
    kept = f"slots[{slot}] = " if wait and state not in writer.freed else ""
    writer.write(f"{writer.local(state)} = {kept}slots[{slot}]{wait}")
    if state in writer.freed:
        writer.write(f"slots[{slot}] = None")


def _write_copy(writer: _Writer, copy: Copy) -> None:
    send, slots = writer.bind("start_copy", steps.start_copy), writer.slots
    slot, landing, event = slots.ends_of(copy)
    into = f", slots[{landing}].narrow(-1, {copy.into.start}, {copy.into.length})" if copy.into else ""
    value = writer.local(State(copy.value.node))
    writer.write(f"slots[{slot}] = {send}({value}, {writer.place(copy.target)}{into})")
    if event is not None:
        writer.write(f"slots[{event}] = slots[{slot}].done")


def _assemble(writer: _Writer, name: str) -> RunSource:
    run = writer.run
    parameters = ", ".join([*writer.bound, *writer.weights])
    head = [
        "def bind(",
        *textwrap.wrap(parameters, 120, initial_indent="    ", subsequent_indent="    "),
        "):",
        "    def run(slots):",
        f'        """Segment {run.segment.index} on {run.device}."""',
    ]
    tail = ["    return run", ""]
    code = "\n".join([*head, *(text for text, _ in writer.lines), *tail])
    span = f'        """Segment {run.segment.index} on {run.device}: {_quotable(_span(run.nodes))}."""'
    body = [text + (f"  # {_comment(node)}" if node else "") for text, node in writer.lines]
    shown = "\n".join([*head[:-1], span, *body, *tail])
    lines = {len(head) + index: node for index, (_, node) in enumerate(writer.lines, 1) if node}
    return RunSource(name, code, shown, writer.bound, writer.weights, lines)


def _span(nodes: Sequence[Node]) -> str:
    modules = [origin_of(node).module for node in nodes if origin_of(node).module]
    return f"{modules[0]} … {modules[-1]}" if modules else f"{len(nodes)} nodes"


def _comment(node: Node) -> str:
    origin = origin_of(node)
    return _printable(" · ".join(part for part in (origin.module, origin.source) if part))


def _quotable(text: str) -> str:
    """Text that ends no string that it stands in."""
    return _printable(text).replace("\\", "/").replace('"', "'")


def _printable(text: str) -> str:
    """Text on one line, without characters that are not seen."""
    return text if text.isprintable() else "".join(one if one.isprintable() else " " for one in text)
