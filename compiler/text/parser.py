"""Reads the text form of a program. Reading builds data and looks operations up by name; it runs nothing."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch
from torch.fx import Graph, Node

from ..checkpoints.entries import clipped
from ..devices.device import Device
from ..devices.rig import Rig
from ..errors import ProgramTextError, TextError, in_our_words
from ..ir.aliasing import overwrites
from ..ir.asked import QUESTIONS
from ..ir.eligibility import marks_by_name
from ..ir.program import (
    LOWERED,
    Block,
    Origin,
    Placement,
    Program,
    Segment,
    place_node,
    placement_of,
    value_of,
    weight_name,
)
from ..ir.signature import ConstantLeaf, Signature, TensorLeaf, leaf_path
from ..ir.sizes import holds, symbols_of
from ..ir.slices import Bounds
from ..ir.structure import count_leaves
from ..ir.targets import find_target
from ..ir.value import TensorType, Value
from ..ir.weight import Weight
from ..spec.residency import Residency
from ..states.parts import members
from .spelling import read_plain
from .tokens import Line, known, unquoted
from .weight_text import STATES, read_residency, read_states, read_weight


def parse_program(text: str) -> Program:
    """The program that a text form describes, up to its schedule, which the schedule pass writes anew.

    Raises ProgramTextError, which names the line, for text that is not a program.
    """
    reader = reader_of(text.split("\n"))
    with refusing(lambda: "the text is no program"):
        return reader.finish()


def reader_of(lines: Iterable[str]) -> Reader:
    """A reader that has read some lines from the first one on; raises ProgramTextError, which names the line."""
    reader, number, line = Reader(), 0, ""
    with refusing(lambda: f"line {number} is not part of a program: {line.strip()[:120]!r}"):
        for number, line in enumerate(lines, 1):  # noqa: B007
            if line.strip():
                reader.read(line)
    return reader


@contextmanager
def refusing(problem: Callable[[], str]) -> Iterator[None]:
    """Turns whatever a text breaks into one error: a file may be anything."""
    try:
        yield
    except Exception as error:
        raise ProgramTextError(clipped(f"{problem()}: {in_our_words(error)}")) from error


@dataclass
class Reader:
    """What the lines read so far amount to: a program once all were read, and before that a part of one."""

    name: str = ""
    graph: Graph = field(default_factory=Graph)
    nodes: dict[str, Node] = field(default_factory=dict)
    weights: dict[str, Weight] = field(default_factory=dict)
    blocks: dict[str, list[str]] = field(default_factory=dict)
    home: dict[str, Device] = field(default_factory=dict)
    rig: Rig = field(default_factory=Rig)
    devices: dict[str, Device] = field(default_factory=dict)
    autocast: torch.dtype | None = None
    kept: Residency = Residency.DEVICE
    residency: dict[str, Residency] = field(default_factory=dict)
    bounds: dict[str, Bounds] = field(default_factory=dict)
    eligible: set[str] = field(default_factory=set)
    symbols: dict[str, int] = field(default_factory=dict)
    ranges: dict[str, tuple[int, int]] = field(default_factory=dict)
    guards: list[str] = field(default_factory=list)
    asked: frozenset[str] = frozenset()
    history: tuple[str, ...] = ()
    facts: frozenset[str] = frozenset()
    positional: tuple[str, ...] = ()
    defaults: dict[str, Any] = field(default_factory=dict)
    arguments: list[tuple[str, list[Any], str]] = field(default_factory=list)
    returns: str = ""
    ended: bool = False

    def read(self, text: str) -> None:
        """Reads one line; raises TextError and its like for one that is no part of a program."""
        line = Line(text)
        word = line.take()
        if self.ended:
            raise TextError("nothing follows the line that returns")
        if word.startswith("%"):
            self._node(word[1:], line)
        elif word in _LINES:
            _LINES[word](self, line)
        else:
            raise TextError(f"no line begins with {word}")

    def _read_program(self, line: Line) -> None:
        self.name = line.text_in_quotes()

    def _read_passes(self, line: Line) -> None:
        self.history = tuple(_words(line))

    def _read_facts(self, line: Line) -> None:
        self.facts = frozenset(filter(None, _words(line)))

    def _read_devices(self, line: Line) -> None:
        self.rig = Rig.parse(line.rest())
        self.devices = {device.name: device for device in self.rig}

    def _read_autocast(self, line: Line) -> None:
        word = line.take()
        self.autocast = known(LOWERED, word, f"autocast is of {' or '.join(LOWERED)}, and {word} is none of them")

    def _read_rests(self, line: Line) -> None:
        self.kept = read_residency(line)

    def _read_symbol(self, line: Line) -> None:
        match = re.fullmatch(r"([A-Za-z_]\w{0,60}) = (\d{1,19}) in (-?\d{1,19})\.\.(\d{1,19})", line.rest(), re.ASCII)
        if not match:
            raise TextError("expected name = size in low..high")
        size, low, high = int(match[2]), int(match[3]), int(match[4])
        if not low <= size <= high < 2**63:
            raise TextError(f"{size} is not in {low}..{high}")
        self.symbols[match[1]] = size
        self.ranges[match[1]] = (low, high)

    def _read_guard(self, line: Line) -> None:
        guard = line.rest()
        if not holds(guard, self.symbols):
            raise TextError("a guard holds for the sizes of the example")
        self.guards.append(guard)

    def _read_asks(self, line: Line) -> None:
        self.asked = frozenset(_words(line))
        if not self.asked <= QUESTIONS:
            raise TextError(f"a model asks for {', '.join(sorted(QUESTIONS))}")

    def _read_takes(self, line: Line) -> None:
        line.take("[")
        self.positional = tuple(line.items("]", line.text_in_quotes))
        line.take("defaults")
        line.take("{")
        self.defaults = dict(line.items("}", lambda: self._default(line)))

    def _default(self, line: Line) -> tuple[str, Any]:
        name = line.text_in_quotes()
        line.take(":")
        return name, line.argument({})

    def _read_argument(self, line: Line) -> None:
        word = line.take()
        name = unquoted(word) if word.startswith('"') else word + line.take() if word == "*" else word
        line.take(":")
        found = []
        while line.peek() and not line.accept("as"):
            found.append(self._leaf(line))
            line.accept(",")
        spec = line.rest()
        if count_leaves(spec) != len(found):
            raise TextError(f"the structure has {count_leaves(spec)} leaves, the line {len(found)}")
        self.arguments.append((name, found, spec))

    def _leaf(self, line: Line) -> Any:
        if line.accept("="):
            return (line.argument({}),)
        line.take("tensor")
        return None

    def _read_returns(self, line: Line) -> None:
        self.returns = line.rest()
        count_leaves(self.returns)

    def _read_block(self, line: Line) -> None:
        self.blocks[line.text_in_quotes()] = []

    def _read_return(self, line: Line) -> None:
        results = line.argument(self.nodes)
        if not isinstance(results, list) or any(isinstance(result, (list, tuple, slice)) for result in results):
            raise TextError("expected a list of results")
        self.graph.output(results).meta["value"] = None
        self.ended = True

    def _node(self, name: str, line: Line) -> None:
        line.take(":")
        value = line.value(self.symbols)
        line.take("=")
        word = line.take()
        if word == "input":
            node = self.graph.placeholder(name)
        elif word in ("parameter", "buffer", "constant", "adapter"):
            node = self.graph.placeholder(name)
            node.meta["weight"] = self._weight(word, value, line).name
        else:
            node = self._call(name, word, line)
        if name in self.nodes:
            raise TextError(f"%{name} stands twice")
        if node.name != name:  # which fx has changed, and takes long to be told
            node.name = name
        node.meta["value"] = value
        self.nodes[name] = node
        self._annotate(node, line)

    def _weight(self, kind: str, value: Value, line: Line) -> Weight:
        read = read_weight(kind, value, line, len(self.devices), "quantized" in self.facts)
        name, kept = read.weight.name, read.rests or (self.kept if kind == "parameter" else Residency.DEVICE)
        if name in self.weights:
            raise TextError(f"weight {name} stands twice")
        self.weights[name] = read.weight
        if read.bounds:
            self.bounds[name] = read.bounds
        if read.is_eligible:
            self.eligible.add(name)
        if read.block is not None:
            known(self.blocks, read.block, f"no line before is of a block {read.block!r}").append(name)
        if kept is not Residency.DEVICE:
            self.residency[name] = kept
        return read.weight

    def _call(self, name: str, target: str, line: Line) -> Node:
        line.take("(")
        args: list[Any] = []
        kwargs: dict[str, Any] = {}
        for key, value in line.items(")", lambda: line.keyword(self.nodes)):
            if key:
                kwargs[key] = value
            else:
                args.append(value)
        return self.graph.create_node("call_function", find_target(target), tuple(args), kwargs, name=name)

    def _annotate(self, node: Node, line: Line) -> None:
        """Placement and origin, as far as the line has them."""
        if line.peek() != "//":
            self._place(node, line)
        if line.accept("over") and (not overwrites(node) or line.take() != f"%{node.args[0]}"):
            raise TextError(f"%{node.name} does not lie in the memory that it is said to be computed over")
        if line.accept("//"):
            if node.op == "call_function":
                node.meta["origin"] = _origin(line.text[line.position + 1 :])
        elif line.rest():
            raise TextError(f"unexpected {line.rest()!r}")

    def _place(self, node: Node, line: Line) -> None:
        """Placement, as far as the line has it."""
        group = self._group(node, line) if line.accept("@") else ()
        device = group[0] if group else None
        segment = line.count() if device and line.accept("#") else None
        part = line.count() if node.op == "call_function" and line.accept("part") else None
        states = tuple(read_states(line, len(group))) if node.op == "call_function" and line.peek() in STATES else ()
        weights = tuple(name for operand in node.all_input_nodes if (name := weight_name(operand)))
        if device and line.accept("uses"):
            line.take("[")
            used = line.items("]", line.text_in_quotes)
            weights = tuple(known(self.weights, one, f"no line before is of a weight {one!r}").name for one in used)
        if device and (weight := weight_name(node)):
            self.home[weight] = device
        elif device and "pinned" in self.facts:
            node.meta["placement"] = Placement(group, segment, weights, states, part)
        elif states or part is not None:
            node.meta["placement"] = Placement(group, states=states, part=part)

    def _group(self, node: Node, line: Line) -> tuple[Device, ...]:
        """The devices behind an @, with a + between them."""
        found = [self._device(line.device_name())]
        while line.accept("+"):
            found.append(self._device(line.device_name()))
        if len(set(found)) < len(found) or (len(found) > 1 and node.op != "call_function"):
            raise TextError(f"%{node.name} cannot be on {'+'.join(map(str, found))}")
        return tuple(found)

    def _device(self, name: str) -> Device:
        there = ", ".join(self.devices) or "none"
        return known(self.devices, name, f"{name} is not among the devices of the program, which are: {there}")

    def finish(self) -> Program:
        """The program, once the line that returns was read; raises ProgramTextError where it cannot be one."""
        if not self.name or not self.ended:
            raise ProgramTextError("it must open with a line program and end with one return")
        if "cut" in self.facts and not {"placed", "pinned"} <= self.facts:
            raise ProgramTextError("a program that is cut was placed and pinned before, and its facts say otherwise")
        program = self.program()
        self._finish_placement(program)
        self._check_marks(program)
        return program

    def program(self) -> Program:
        """What was read so far as a program."""
        return Program(
            name=self.name,
            graph=self.graph,
            signature=self._signature(),
            weights=self.weights,
            symbols=self.symbols,
            rig=self.rig,
            blocks=tuple(Block(name, tuple(weights)) for name, weights in self.blocks.items()),
            home=self.home,
            autocast=self.autocast,
            residency=self.residency,
            bounds=self.bounds,
            history=self.history,
            facts=self.facts - {"scheduled"},
        )

    def _check_marks(self, program: Program) -> None:
        """Raises ProgramTextError where a weight is said to be eligible for a row split and is not."""
        reasons = marks_by_name(program) if self.eligible else {}
        for name in sorted(self.eligible):
            if reasons[name]:
                raise ProgramTextError(f"weight {name} is said to be eligible for a row split: {reasons[name]}")

    def _finish_placement(self, program: Program) -> None:
        if "pinned" in program.facts:
            place_node(program.output, group=(program.main,))
        if "cut" not in program.facts:
            return
        runs: dict[int, list[Node]] = {}
        for node in program.ops():
            if "placement" not in node.meta:
                raise ProgramTextError(f"%{node.name} is on no device, and in a program that is cut each operation is")
            runs.setdefault(placement_of(node).segment, []).append(node)  # type: ignore[arg-type]
        program.segments = tuple(
            Segment(index, placement_of(run[0]).device, tuple(run), members(program, run[0]))  # type: ignore[arg-type]
            for index, run in runs.items()
        )

    def _signature(self) -> Signature:
        nodes = [node for node in self.graph.find_nodes(op="placeholder") if not weight_name(node)]
        inputs = iter([value for node in nodes if isinstance(value := value_of(node), TensorType)])
        if len(nodes) != sum(leaf is None for _, found, _ in self.arguments for leaf in found):
            raise ProgramTextError(f"there are {len(nodes)} inputs, the arguments have another number of tensors")
        leaves: list[TensorLeaf | ConstantLeaf] = []
        for name, found, _ in self.arguments:
            for index, leaf in enumerate(found):
                path = leaf_path(name, index, len(found))
                kind = None if leaf else next(inputs)  # an input that is no tensor leaves one too few
                leaves.append(
                    TensorLeaf(path, kind.shape, kind.dtype, kind.stride) if kind else ConstantLeaf(path, leaf[0])
                )
        bare = {size for leaf in leaves if isinstance(leaf, TensorLeaf) for size in leaf.shape} & self.ranges.keys()
        if any(symbols_of(guard) - bare for guard in self.guards):
            raise ProgramTextError("a guard speaks of a symbol that is no dimension of an input")
        return Signature(
            positional=self.positional,
            defaults=self.defaults,
            names=tuple(name for name, _, _ in self.arguments),
            specs=tuple(spec for _, _, spec in self.arguments),
            leaves=tuple(leaves),
            out_spec=self.returns,
            ranges=self.ranges,
            guards=tuple(self.guards),
            asked=self.asked,
        )


def _origin(text: str) -> Origin:
    parts = text.split(" : ", 2)
    if len(parts) != 3:
        raise TextError("behind // stand a module, its class and a place in its source, with colons between them")
    return Origin(*map(read_plain, parts))


def _words(line: Line) -> list[str]:
    """What is left of a line, between commas."""
    if not line.rest().isprintable():
        raise TextError("the line has characters that are not seen")
    return line.rest().split(", ")


_LINES: dict[str, Callable[[Reader, Line], None]] = {
    "program": Reader._read_program,
    "passes": Reader._read_passes,
    "facts": Reader._read_facts,
    "devices": Reader._read_devices,
    "autocast": Reader._read_autocast,
    "rests": Reader._read_rests,
    "symbol": Reader._read_symbol,
    "guard": Reader._read_guard,
    "asks": Reader._read_asks,
    "takes": Reader._read_takes,
    "argument": Reader._read_argument,
    "returns": Reader._read_returns,
    "block": Reader._read_block,
    "return": Reader._read_return,
}
"""How each line that is no node is read, by its first word."""
