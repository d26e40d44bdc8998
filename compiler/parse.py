"""Reads the text form of a program. Reading builds data and looks operations up by name; it runs nothing."""

from __future__ import annotations

import ast
import json
import math
import operator
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import torch
from torch.fx import Graph, Node

from .devices import Device, Rig
from .errors import DovetailError, ProgramTextError
from .program import (
    Block,
    Crossing,
    Origin,
    Placement,
    Program,
    Segment,
    TensorType,
    Value,
    Weight,
    place_node,
    placement_of,
    tensors_of,
    weight_of,
)
from .signature import Constant, Signature, Tensor, leaf_path
from .sizes import evaluate
from .words import DTYPES, SINGLETONS, dense_stride

_TOKEN = re.compile(r'\s*(%[A-Za-z_]\w*|"(?:[^"\\]|\\.)*"|-?(?:\d+\.?\d*(?:e[-+]?\d+)?|\.\d+)|[A-Za-z_][\w.]*|//|[^\s\w])')
_NAMES = {name: getattr(operator, name) for name in operator.__all__} | {"getitem": operator.getitem}


def parse_program(text: str) -> Program:
    """The program that a text form describes, up to its schedule, which the schedule pass writes anew.

    Raises ProgramTextError, which names the line, for text that is not a program.
    """
    reader = _Reader()
    for number, line in enumerate(text.splitlines(), 1):
        if not line.strip():
            continue
        try:
            reader.read(line)
        except DovetailError:
            raise
        except (ValueError, KeyError, IndexError, SyntaxError, StopIteration, AttributeError, TypeError) as error:
            raise ProgramTextError(f"line {number} is not part of a program: {line.strip()[:120]!r}: {error}") from error
    return reader.finish()


@dataclass
class _Line:
    """The tokens of one line, taken from the left."""

    text: str
    position: int = 0

    def peek(self) -> str:
        match = _TOKEN.match(self.text, self.position)
        return match[1] if match else ""

    def take(self, expected: str | None = None) -> str:
        match = _TOKEN.match(self.text, self.position)
        token = match[1] if match else ""
        if not match or (expected is not None and token != expected):
            raise ValueError(f"expected {expected or 'more'} at column {self.position + 1}, found {token or 'the end'}")
        self.position = match.end()
        return token

    def accept(self, token: str) -> bool:
        if self.peek() != token:
            return False
        self.take()
        return True

    def rest(self) -> str:
        return self.text[self.position :].strip()

    def items(self, close: str, item: Callable[[], Any]) -> list[Any]:
        """Items between commas up to a closing bracket."""
        found = []
        while not self.accept(close):
            found.append(item())
            if self.peek() != close:
                self.take(",")
        return found


@dataclass
class _Reader:
    """What the lines read so far amount to."""

    name: str = ""
    graph: Graph = field(default_factory=Graph)
    nodes: dict[str, Node] = field(default_factory=dict)
    weights: dict[str, Weight] = field(default_factory=dict)
    blocks: dict[str, list[Weight]] = field(default_factory=dict)
    home: dict[str, Device] = field(default_factory=dict)
    devices: dict[str, Device] = field(default_factory=dict)
    symbols: dict[str, int] = field(default_factory=dict)
    ranges: dict[str, tuple[int, int]] = field(default_factory=dict)
    crossings: list[_Line] = field(default_factory=list)
    history: tuple[str, ...] = ()
    facts: frozenset[str] = frozenset()
    positional: tuple[str, ...] = ()
    defaults: dict[str, Any] = field(default_factory=dict)
    arguments: list[tuple[str, list[Any], str]] = field(default_factory=list)
    returns: str = ""

    def read(self, text: str) -> None:
        line = _Line(text)
        word = line.take()
        if word.startswith("%"):
            self._node(word[1:], line)
            return
        getattr(self, f"_read_{word}")(line)

    def _read_program(self, line: _Line) -> None:
        self.name = json.loads(line.rest())

    def _read_passes(self, line: _Line) -> None:
        self.history = tuple(re.findall(r"[^,{\s]+(?:\{[^}]*\})?", line.rest()))

    def _read_facts(self, line: _Line) -> None:
        self.facts = frozenset(filter(None, line.rest().split(", ")))

    def _read_devices(self, line: _Line) -> None:
        self.devices = {device.name: device for device in Rig.parse(line.rest())}

    def _read_symbol(self, line: _Line) -> None:
        match = re.fullmatch(r"(\w+) = (\d+) in (-?\d+)\.\.(\d+)", line.rest())
        if not match:
            raise ValueError("expected name = size in low..high")
        self.symbols[match[1]] = int(match[2])
        self.ranges[match[1]] = (int(match[3]), int(match[4]))

    def _read_takes(self, line: _Line) -> None:
        names, _, defaults = line.rest().partition(" defaults ")
        self.positional = tuple(json.loads(names))
        self.defaults = ast.literal_eval(defaults)

    def _read_argument(self, line: _Line) -> None:
        name, _, rest = line.rest().partition(": ")
        leaves, _, spec = rest.partition(" as [")
        inner = _Line(leaves)
        found = []
        while inner.peek():
            found.append(self._leaf(inner))
            inner.accept(",")
        self.arguments.append((name, found, f"[{spec}" if spec else ""))

    def _leaf(self, line: _Line) -> Any:
        if line.accept("="):
            return (self._argument(line),)
        line.take("tensor")
        return None

    def _read_returns(self, line: _Line) -> None:
        self.returns = line.rest()

    def _read_block(self, line: _Line) -> None:
        self.blocks[json.loads(line.take())] = []

    def _read_cross(self, line: _Line) -> None:
        self.crossings.append(line)

    def _read_return(self, line: _Line) -> None:
        self.graph.output(self._argument(line)).meta["value"] = None

    def _node(self, name: str, line: _Line) -> None:
        line.take(":")
        value = self._value(line)
        line.take("=")
        word = line.take()
        if word == "input":
            node = self.graph.placeholder(name)
        elif word in ("parameter", "buffer", "constant"):
            node = self.graph.placeholder(name)
            node.meta["weight"] = self._weight(word, value, line)
        else:
            node = self._call(name, word, line)
        if name in self.nodes:
            raise ValueError(f"%{name} stands twice")
        node.name = name
        node.meta["value"] = value
        self.nodes[name] = node
        self._annotate(node, line)

    def _weight(self, kind: str, value: Value, line: _Line) -> Weight:
        assert isinstance(value, TensorType)
        name = json.loads(line.take())
        aliases = []
        while line.accept("alias"):
            aliases.append(json.loads(line.take()))
        persistent = not line.accept("transient")
        weight = Weight(name, kind, value.sizes, value.dtype, tuple(aliases), persistent)
        self.weights[name] = weight
        if line.accept("in"):
            self.blocks[json.loads(line.take())].append(weight)
        return weight

    def _call(self, name: str, target: str, line: _Line) -> Node:
        line.take("(")
        args: list[Any] = []
        kwargs: dict[str, Any] = {}
        for key, value in line.items(")", lambda: self._keyword(line)):
            if key:
                kwargs[key] = value
            else:
                args.append(value)
        return self.graph.create_node("call_function", find_target(target), tuple(args), kwargs, name=name)

    def _annotate(self, node: Node, line: _Line) -> None:
        """Placement and origin, as far as the line has them."""
        direct = tuple(found for operand in node.all_input_nodes if (found := weight_of(operand)))
        if line.accept("@"):
            device = self.devices[line.take()]
            segment = int(line.take()) if line.accept("#") else None
            if line.accept("uses"):
                direct = tuple(self.weights[name] for name in self._argument(line))
            if "pinned" in self.facts:
                nbytes = sum(tensor.nbytes for tensor in tensors_of(node))
                node.meta["placement"] = Placement(device, segment, direct, nbytes)
            weight = weight_of(node)
            if weight:
                self.home[weight.name] = device
        if line.accept("//"):
            node.meta["origin"] = Origin(*line.text[line.position + 1 :].split(" : ", 2))
        elif node.op == "call_function" and line.rest():
            raise ValueError(f"unexpected {line.rest()!r}")

    def _keyword(self, line: _Line) -> tuple[str, Any]:
        start = line.position
        word = line.take()
        if word.isidentifier() and line.accept("="):
            return word, self._argument(line)
        line.position = start
        return "", self._argument(line)

    def _argument(self, line: _Line) -> Any:
        token = line.take()
        if token == "[":
            return line.items("]", lambda: self._argument(line))
        if token.startswith("%"):
            return self.nodes[token[1:]]
        if token.startswith('"'):
            return json.loads(token)
        if token in ("float", "complex", "slice", "device", "opaque"):
            return self._special(token, line)
        if token in SINGLETONS:
            return SINGLETONS[token]
        if token in DTYPES:
            return DTYPES[token]
        return float(token) if any(mark in token for mark in ".e") else int(token)

    def _special(self, word: str, line: _Line) -> Any:
        if word == "float":
            sign = -1 if line.accept("-") else 1
            return sign * {"inf": math.inf, "nan": math.nan}[line.take()]
        if word == "complex":
            return complex(float(line.take()), float(line.take()))
        if word == "slice":
            return slice(*self._argument(line))
        if word == "device":
            return torch.device(json.loads(line.take()))
        raise ValueError(f"{line.take()} was printed from an object that has no text form")

    def _value(self, line: _Line) -> Value:
        if line.accept("number"):
            return None
        if line.accept("("):
            return tuple(line.items(")", lambda: self._value(line)))
        dtype = DTYPES[line.take()]
        line.take("[")
        shape = self._sizes(line, "]")
        stride = self._sizes(line, ")") if line.accept("(") else dense_stride(shape) or ()
        line.take("~")
        dynamic = any(isinstance(size, str) for size in shape)
        hint = tuple(evaluate(size, self.symbols) for size in shape) if dynamic else ()
        return TensorType(shape, dtype, stride, int(line.take()), hint)

    def _sizes(self, line: _Line, close: str) -> tuple[int | str, ...]:
        end, depth = line.position, 0
        while line.text[end] != close or depth:
            depth += (line.text[end] == "(") - (line.text[end] == ")")
            end += 1
        texts = _split(line.text[line.position : end])
        line.position = end + 1
        return tuple(int(text) if re.fullmatch(r"-?\d+", text) else text for text in texts)

    def finish(self) -> Program:
        if not self.name or self.graph.output_node() is None:
            raise ProgramTextError("the text has no program: it must open with a line program and end with one return")
        program = Program(
            name=self.name,
            graph=self.graph,
            signature=self._signature(),
            weights=self.weights,
            symbols=self.symbols,
            devices=tuple(self.devices.values()),
            blocks=tuple(Block(name, tuple(weights)) for name, weights in self.blocks.items()),
            home=self.home,
            history=self.history,
            facts=self.facts - {"scheduled"},
        )
        self._finish_placement(program)
        return program

    def _finish_placement(self, program: Program) -> None:
        if "pinned" in program.facts:
            place_node(program.output, device=program.main)
        if "cut" not in program.facts:
            return
        runs: dict[int, list[Node]] = {}
        for node in program.ops():
            runs.setdefault(placement_of(node).segment, []).append(node)  # type: ignore[arg-type]
        program.segments = tuple(
            Segment(index, placement_of(run[0]).device, tuple(run))  # type: ignore[arg-type]
            for index, run in runs.items()
        )
        program.crossings = tuple(map(self._crossing, self.crossings))

    def _crossing(self, line: _Line) -> Crossing:
        node = self.nodes[line.take()[1:]]
        version = int(line.take()) if line.accept("'") else 0
        line.take("→")
        device = self.devices[line.take()]
        producer = self._end(line)
        line.take("→")
        return Crossing(node, version, device, producer, self._end(line))

    def _end(self, line: _Line) -> int | None:
        return int(line.take()) if line.accept("#") else _outside(line)

    def _signature(self) -> Signature:
        inputs = iter([tensors_of(n)[0] for n in self.graph.find_nodes(op="placeholder") if weight_of(n) is None])
        leaves: list[Tensor | Constant] = []
        for name, found, _ in self.arguments:
            for index, leaf in enumerate(found):
                path = leaf_path(name, index, len(found))
                kind = None if leaf else next(inputs)
                leaves.append(Tensor(path, kind.shape, kind.dtype, kind.stride) if kind else Constant(path, leaf[0]))
        return Signature(
            positional=self.positional,
            defaults=self.defaults,
            names=tuple(name for name, _, _ in self.arguments),
            specs=tuple(spec for _, _, spec in self.arguments),
            leaves=tuple(leaves),
            out_spec=self.returns,
            ranges=self.ranges,
        )


def _outside(line: _Line) -> None:
    line.take("outside")


def _split(text: str) -> Iterator[str]:
    """The parts between commas outside parentheses."""
    return (part.strip() for part in re.split(r",(?![^(]*\))", text) if part.strip())


def find_target(name: str) -> Any:
    """The operation of a name: an ATen or other registered op, a function of ``operator``, or a ``torch.sym_`` one."""
    module, _, last = name.rpartition(".")
    if module == "operator" and last in _NAMES:
        return _NAMES[last]
    if module == "torch" and last.startswith("sym_"):
        return getattr(torch, last)
    if module == "math" and last in ("ceil", "floor", "trunc", "sqrt"):
        return getattr(math, last)
    namespace, _, packet = module.partition(".")
    try:
        return getattr(getattr(getattr(torch.ops, namespace), packet), last)
    except AttributeError as error:
        raise ProgramTextError(f"there is no operation {name} in torch {torch.__version__}") from error

