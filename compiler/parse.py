"""Reads the text form of a program. Reading builds data and looks operations up by name; it runs nothing."""

from __future__ import annotations

import ast
import json
import re
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
from .targets import find_target
from .tokens import Line


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
            raise ProgramTextError(
                f"line {number} is not part of a program: {line.strip()[:120]!r}: {error}"
            ) from error
    return reader.finish()


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
    rests: str = ""
    shares: tuple[float, ...] = ()
    symbols: dict[str, int] = field(default_factory=dict)
    ranges: dict[str, tuple[int, int]] = field(default_factory=dict)
    crossings: list[Line] = field(default_factory=list)
    history: tuple[str, ...] = ()
    facts: frozenset[str] = frozenset()
    positional: tuple[str, ...] = ()
    defaults: dict[str, Any] = field(default_factory=dict)
    arguments: list[tuple[str, list[Any], str]] = field(default_factory=list)
    returns: str = ""

    def read(self, text: str) -> None:
        line = Line(text)
        word = line.take()
        if word.startswith("%"):
            self._node(word[1:], line)
            return
        getattr(self, f"_read_{word}")(line)

    def _read_program(self, line: Line) -> None:
        self.name = json.loads(line.rest())

    def _read_passes(self, line: Line) -> None:
        self.history = tuple(re.findall(r"[^,{\s]+(?:\{[^}]*\})?", line.rest()))

    def _read_facts(self, line: Line) -> None:
        self.facts = frozenset(filter(None, line.rest().split(", ")))

    def _read_devices(self, line: Line) -> None:
        self.devices = {device.name: device for device in Rig.parse(line.rest())}

    def _read_rests(self, line: Line) -> None:
        self.rests = line.take()
        if self.rests not in ("cpu", "disk"):
            raise ValueError("weights rest on the cpu or the disk")

    def _read_shares(self, line: Line) -> None:
        self.shares = tuple(map(float, line.rest().split(":")))

    def _read_symbol(self, line: Line) -> None:
        match = re.fullmatch(r"(\w+) = (\d+) in (-?\d+)\.\.(\d+)", line.rest())
        if not match:
            raise ValueError("expected name = size in low..high")
        self.symbols[match[1]] = int(match[2])
        self.ranges[match[1]] = (int(match[3]), int(match[4]))

    def _read_takes(self, line: Line) -> None:
        names, _, defaults = line.rest().partition(" defaults ")
        self.positional = tuple(json.loads(names))
        self.defaults = ast.literal_eval(defaults)

    def _read_argument(self, line: Line) -> None:
        name, _, rest = line.rest().partition(": ")
        leaves, _, spec = rest.partition(" as [")
        inner = Line(leaves)
        found = []
        while inner.peek():
            found.append(self._leaf(inner))
            inner.accept(",")
        self.arguments.append((name, found, f"[{spec}" if spec else ""))

    def _leaf(self, line: Line) -> Any:
        if line.accept("="):
            return (line.argument(self.nodes),)
        line.take("tensor")
        return None

    def _read_returns(self, line: Line) -> None:
        self.returns = line.rest()

    def _read_block(self, line: Line) -> None:
        self.blocks[json.loads(line.take())] = []

    def _read_cross(self, line: Line) -> None:
        self.crossings.append(line)

    def _read_return(self, line: Line) -> None:
        self.graph.output(line.argument(self.nodes)).meta["value"] = None

    def _node(self, name: str, line: Line) -> None:
        line.take(":")
        value = line.value(self.symbols)
        line.take("=")
        word = line.take()
        if word == "input":
            node = self.graph.placeholder(name)
        elif word in ("parameter", "buffer", "constant", "adapter"):
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

    def _weight(self, kind: str, value: Value, line: Line) -> Weight:
        name = json.loads(line.take())
        aliases = []
        while line.accept("alias"):
            aliases.append(json.loads(line.take()))
        rows = self._rows(line) if line.accept("rows") else None
        quant = line.take() if line.accept("packed") else ""
        shape, dtype = _numbers_in(line) if quant else _numbers_of(value)
        persistent, frozen = not line.accept("transient"), line.accept("frozen")
        name = f"{name}[{rows[0]}:{rows[1]}]" if rows else name
        weight = Weight(name, kind, shape, dtype, tuple(aliases), persistent, frozen, quant, rows)
        self.weights[name] = weight
        if line.accept("in"):
            self.blocks[json.loads(line.take())].append(weight)
        return weight

    def _rows(self, line: Line) -> tuple[int, int]:
        start = int(line.take())
        line.take(":")
        return start, int(line.take())

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
        direct = tuple(found for operand in node.all_input_nodes if (found := weight_of(operand)))
        if line.accept("@"):
            device = self.devices[line.take()]
            segment = int(line.take()) if line.accept("#") else None
            if line.accept("uses"):
                direct = tuple(self.weights[name] for name in line.argument(self.nodes))
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
            rests=self.rests,
            shares=self.shares,
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

    def _crossing(self, line: Line) -> Crossing:
        node = self.nodes[line.take()[1:]]
        version = int(line.take()) if line.accept("'") else 0
        line.take("→")
        device = self.devices[line.take()]
        producer = self._end(line)
        line.take("→")
        return Crossing(node, version, device, producer, self._end(line))

    def _end(self, line: Line) -> int | None:
        if line.accept("#"):
            return int(line.take())
        line.take("outside")
        return None

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


def _numbers_of(value: Value) -> tuple[tuple[int, ...], torch.dtype]:
    """Shape and dtype of a weight; one that is a Python number is a float."""
    return (value.sizes, value.dtype) if isinstance(value, TensorType) else ((), torch.float64)


def _numbers_in(line: Line) -> tuple[tuple[int, ...], torch.dtype]:
    """Shape and dtype of a packed weight, whose value says how its bytes lie."""
    shape, dtype = line.numbers()
    return tuple(map(int, shape)), dtype
