"""What a drawing shows of a program: its segments with their modules and weights, and the bytes between them."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

from ..compiler.errors import PassError
from ..compiler.ir.program import Crossing, Program, Segment, origin_of, placement_of
from ..compiler.ir.split import sent
from ..compiler.spec.devices import Device
from ..compiler.spec.units import format_bytes

_NUMBERED = re.compile(r"(.*?)(\d+)")


@dataclass(frozen=True)
class Part:
    """One segment: its device, or the devices that share its work, the modules it computes, and what it weighs."""

    index: int
    where: str
    ops: int
    modules: tuple[str, ...]
    weights: int
    nbytes: int

    @property
    def title(self) -> str:
        """The modules in a few words."""
        shown = self.modules if len(self.modules) <= 5 else (*self.modules[:2], "…", *self.modules[-2:])
        return ", ".join(shown) or "no module of its own"


@dataclass(frozen=True)
class Edge:
    """What crosses from one segment to another; None stands for the inputs, or for the results."""

    source: int | None
    target: int | None
    values: tuple[str, ...]
    nbytes: int

    @property
    def title(self) -> str:
        """How many bytes, and of how many values if there are several."""
        several = f" in {len(self.values)} values" if len(self.values) > 1 else ""
        return format_bytes(self.nbytes) + several


@dataclass(frozen=True)
class Outline:
    """The segments of a program in order, and what crosses between them."""

    name: str
    devices: tuple[Device, ...]
    parts: tuple[Part, ...]
    edges: tuple[Edge, ...]

    @property
    def places(self) -> dict[str, None]:
        """Where segments run: the devices, and the groups of devices that share some."""
        return dict.fromkeys([*(device.name for device in self.devices), *(part.where for part in self.parts)])


def outline(program: Program, name: str = "") -> Outline:
    """The outline of a cut program; raises PassError when it was not cut."""
    if not program.segments:
        raise PassError(f"{program.name} has no segments to draw: run the passes up to cut first")
    parts = tuple(_part(program, segment) for segment in program.segments)
    return Outline(name or program.name, program.devices, parts, _edges(program))


def _part(program: Program, segment: Segment) -> Part:
    weights = dict.fromkeys(name for node in segment.nodes for name in placement_of(node).weights)
    paths = [name.rpartition(".")[0] for name in weights] or [origin_of(node).module for node in segment.nodes]
    units = dict.fromkeys(_unit(path, [block.name for block in program.blocks]) for path in paths if path)
    nbytes = program.nbytes_of(weights)
    where = " & ".join(device.name for device in program.devices if device in segment.group)
    return Part(segment.index, where, len(segment.nodes), spans([*units]), len(weights), nbytes)


def _unit(module: str, blocks: Sequence[str]) -> str:
    """The block that a module path lies in, or else its first name, or two names where blocks lie beside it."""
    block = next((block for block in blocks if f"{module}.".startswith(f"{block}.")), None)
    if block:
        return block
    first = module.partition(".")[0]
    beside = any(name.startswith(f"{first}.") and not name[len(first) + 1 :].isdigit() for name in blocks)
    return ".".join(module.split(".")[: 2 if beside else 1])


def spans(paths: Sequence[str]) -> tuple[str, ...]:
    """The paths with each run of consecutive numbers drawn together.

    >>> spans(["embed", "blocks.0", "blocks.1", "blocks.2", "norm"])
    ('embed', 'blocks.0–2', 'norm')
    """
    runs: list[tuple[str, int, int]] = []
    for path in paths:
        match = _NUMBERED.fullmatch(path)
        stem, number = (match[1], int(match[2])) if match else (path, -1)
        if runs and number > 0 and runs[-1][0] == stem and runs[-1][2] == number - 1:
            runs[-1] = (stem, runs[-1][1], number)
        else:
            runs.append((stem, number, number))
    return tuple(dict.fromkeys(map(_span_text, runs)))


def _span_text(run: tuple[str, int, int]) -> str:
    stem, first, last = run
    if first < 0:
        return stem
    return f"{stem}{first}" if first == last else f"{stem}{first}–{last}"


def _edges(program: Program) -> tuple[Edge, ...]:
    grouped: dict[tuple[int | None, int | None], list[Crossing]] = {}
    for crossing in program.crossings:
        grouped.setdefault((crossing.producer, crossing.consumer), []).append(crossing)
    return tuple(_edge(program, *ends, group) for ends, group in grouped.items())


def _edge(program: Program, source: int | None, target: int | None, group: Sequence[Crossing]) -> Edge:
    values = tuple(dict.fromkeys(crossing.value.name for crossing in group))
    return Edge(source, target, values, sum(nbytes for crossing in group for _, nbytes in sent(program, crossing)))
