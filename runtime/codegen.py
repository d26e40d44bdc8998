"""Writes each segment as Python source over local variables.

There is no interpreter: a segment is one function whose body is one line a node, with operations and weights bound as
closure variables and every value dropped at its last use. The listing is what runs and is meant to be read; each line
says which module and source line it came from.
"""

from __future__ import annotations

import itertools
import keyword
import linecache
import math
import operator
import textwrap
import weakref
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import torch
from torch.fx import Node

from ..compiler.ir.aliasing import in_place, writes
from ..compiler.ir.program import HERE, Segment, device_of, origin_of, tensors_of, weight_name
from ..compiler.ir.schedule import Copy, Run, State
from ..compiler.ir.targets import bounded
from ..compiler.spec.devices import Device
from . import gather as _gathering  # noqa: F401  (the kernels of operations that segments may name)
from . import steps
from .in_place import Candidates

Readings = Mapping[tuple[Node, Node], int]
"""For a reader and what it reads the version of it; absent means 0."""


_RESERVED = object()


@dataclass
class SegmentSource:
    """The generated function of one segment.

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
    """Collects the lines of one segment and the objects that they name."""

    run: Run
    slots: Mapping[State, int]
    freed: frozenset[State]
    versions: Readings
    staged: Mapping[str, int] = field(default_factory=dict)
    candidates: Candidates = field(default_factory=lambda: Candidates({}, -1))
    bound: dict[str, Any] = field(default_factory=dict)
    weights: dict[str, Node] = field(default_factory=dict)
    weight_names: dict[Node, str] = field(default_factory=dict)
    fetched: dict[str, int] = field(default_factory=dict)
    names: dict[State, str] = field(default_factory=dict)
    places: dict[Device, torch.device] = field(default_factory=dict)
    lines: list[tuple[str, Node | None]] = field(default_factory=list)
    taken: dict[str, Any] = field(default_factory=lambda: dict.fromkeys(("slots", "run", "bind", "look"), _RESERVED))

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
        moved = device_of(value) != self.run.segment.device
        return State(value, self.versions.get((reader, value), 0) if moved else 0)

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
                device = self.run.segment.device
                return self.bind("device", device.torch) if value == HERE else self.bind("other_device", value)
            case None | bool() | int() | float() | str() | complex():
                return repr(value)
            case _:
                return self.bind(str(value).replace(".", "_").replace("torch_", ""), value)

    def operand(self, reader: Node, value: Node) -> str:
        weight = weight_name(value)
        if weight is None:
            return self.local(self.state(reader, value))
        name = self.weight_names.get(value) or self.name_weight(value)
        if weight in self.staged:
            self.fetched[name] = self.staged[weight]
        else:
            self.weights[name] = value
        return name

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


def write_segment(
    run: Run,
    slots: Mapping[State, int],
    freed: frozenset[State],
    versions: Readings,
    name: str,
    staged: Mapping[str, int] | None = None,
    awaited: frozenset[State] = frozenset(),
    sent: Sequence[tuple[Copy, int, int]] = (),
    candidates: Candidates | None = None,
) -> SegmentSource:
    """Generates the source of a segment.

    Args:
        run: the instruction, with what the segment reads from outside and yields.
        slots: the slot of each such value on the segment's device.
        freed: those of the read values that are freed with this run, at their last use.
        versions: which version of a value from another device each node reads, where it is not 0.
        name: what tracebacks call the source.
        staged: the slot of each weight that comes for one run and goes after it.
        awaited: those of the read values that are on their way, and waited for at their first use.
        sent: the copies that start as soon as their value is what they send, each with its slot there and that of
            the memory that it lands in.
        candidates: the nodes that may be computed in their operand's memory, and whether they have been looked at.
    """
    writer = _Writer(run, slots, freed, versions, staged or {}, candidates or Candidates({}, -1))
    kept = {writer.local(state) for state in run.yields}
    ends = _last_uses(writer, run.segment)
    copies = _copies_after(run.segment, sent)
    late = {writer.local(state): state for state in run.reads if state in awaited}
    for state in run.reads:
        if state not in awaited:
            _write_read(writer, state)
    for node in run.segment.nodes:
        target = writer.local(State(node))
        for operand in node.all_input_nodes if late else ():
            if not weight_name(operand) and (local := writer.local(writer.state(node, operand))) in late:
                _write_read(writer, late.pop(local), ".wait()")
        writer.write(f"{target} = {writer.call(node)}", node)
        for copy in copies[node]:
            _write_copy(writer, *copy)
        done = [local for local in ends[node] if local not in kept]
        if done:
            writer.write(f"del {', '.join(done)}")
    for state in run.yields:
        writer.write(f"slots[{slots[state]}] = {writer.local(state)}")
    writer.lines[:0] = [(f"        {weight} = slots[{slot}]", None) for weight, slot in writer.fetched.items()]
    if any(map(writer.candidates.is_looked_at, run.segment.nodes)):
        writer.lines.insert(0, (f"        look = slots[{writer.candidates.slot}]", None))
    return _assemble(writer, name)


def _write_read(writer: _Writer, state: State, wait: str = "") -> None:
    slot = writer.slots[state]
    kept = f"slots[{slot}] = " if wait and state not in writer.freed else ""
    writer.write(f"{writer.local(state)} = {kept}slots[{slot}]{wait}")
    if state in writer.freed:
        writer.write(f"slots[{slot}] = None")


def _copies_after(segment: Segment, sent: Sequence[tuple[Copy, int, int]]) -> dict[Node, list[tuple[Copy, int, int]]]:
    """For each node the copies of what it has made, or written last."""
    copies: dict[Node, list[tuple[Copy, int, int]]] = defaultdict(list)
    places = {node: place for place, node in enumerate(segment.nodes)} if sent else {}
    written = {storage: place for node, place in places.items() for storage in writes(node)}
    for copy in sent:
        value = copy[0].value.node
        last = max([places[value], *(written.get(tensor.storage, -1) for tensor in tensors_of(value))])
        copies[segment.nodes[last]].append(copy)
    return copies


def _write_copy(writer: _Writer, copy: Copy, slot: int, landing: int) -> None:
    send = writer.bind("start_copy", steps.start_copy)
    target = writer.bind(f"to_{copy.target}", writer.places.setdefault(copy.target, copy.target.torch))
    into = f", slots[{landing}].narrow(-1, {copy.into.start}, {copy.into.length})" if copy.into else ""
    writer.write(f"slots[{slot}] = {send}({writer.local(State(copy.value.node))}, {target}{into})")


def _last_uses(writer: _Writer, segment: Segment) -> dict[Node, list[str]]:
    """For each node the local variables that nothing reads after it; unread results end at their own node."""
    last: dict[str, Node] = {}
    for node in segment.nodes:
        last[writer.local(State(node))] = node
        for operand in node.all_input_nodes:
            if not weight_name(operand):
                last[writer.local(writer.state(node, operand))] = node
    ends: dict[Node, list[str]] = defaultdict(list)
    for local, node in last.items():
        ends[node].append(local)
    return ends


def _assemble(writer: _Writer, name: str) -> SegmentSource:
    segment = writer.run.segment
    parameters = ", ".join([*writer.bound, *writer.weights])
    head = [
        "def bind(",
        *textwrap.wrap(parameters, 120, initial_indent="    ", subsequent_indent="    "),
        "):",
        "    def run(slots):",
        f'        """Segment {segment.index} on {segment.device}."""',
    ]
    tail = ["    return run", ""]
    code = "\n".join([*head, *(text for text, _ in writer.lines), *tail])
    span = f'        """Segment {segment.index} on {segment.device}: {_quotable(_span(segment))}."""'
    body = [text + (f"  # {_comment(node)}" if node else "") for text, node in writer.lines]
    shown = "\n".join([*head[:-1], span, *body, *tail])
    lines = {len(head) + index: node for index, (_, node) in enumerate(writer.lines, 1) if node}
    return SegmentSource(name, code, shown, writer.bound, writer.weights, lines)


def _span(segment: Segment) -> str:
    modules = [origin_of(node).module for node in segment.nodes if origin_of(node).module]
    return f"{modules[0]} … {modules[-1]}" if modules else f"{len(segment.nodes)} nodes"


def _comment(node: Node) -> str:
    origin = origin_of(node)
    return _printable(" · ".join(part for part in (origin.module, origin.source) if part))


def _quotable(text: str) -> str:
    """Text that ends no string that it stands in."""
    return _printable(text).replace("\\", "/").replace('"', "'")


def _printable(text: str) -> str:
    """Text on one line, without characters that are not seen."""
    return text if text.isprintable() else "".join(one if one.isprintable() else " " for one in text)
