"""What a drawing shows of a program: boxes of operations with their modules and weights, and what flows between them.

Boxes that are alike and follow each other are one box with a count, and so are what they weigh and what they send.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, replace

from torch.fx import Node

from ...compiler.devices.device import Device
from ...compiler.errors import PassError
from ...compiler.ir.program import Program, origin_of, placement_of, tensors_of, weight_name
from ...compiler.ir.split import first_reader, maker_of, original
from ...compiler.states.parts import sent
from ...compiler.units import format_bytes
from .alike import text_of
from .folding import repeats
from .grouping import Group, UnitFinder, by_block, by_device, by_segment, unit_finder

_NUMBERED = re.compile(r"(.*?)(\d+)")
_DIGITS = re.compile(r"\d+")

GROUPED = {"segments": by_segment, "blocks": by_block, "devices": by_device}
"""How operations are grouped, finest last but for devices, which are what is left where all else is too much."""


@dataclass(frozen=True)
class Part:
    """One box: its device or the devices that share it, the modules it computes, and what it weighs.

    It stands for ``count`` boxes that are alike; numbers are of all of them. ``inside`` are bytes that cross between
    devices within it. ``nodes`` are the operations of the first. Where it is one operation, ``label`` says what it is,
    and ``within`` which block it belongs to.
    """

    index: int
    where: str
    ops: int
    modules: tuple[str, ...]
    weights: int
    nbytes: int
    count: int = 1
    inside: int = 0
    nodes: tuple[Node, ...] = ()
    label: tuple[str, ...] = ()
    within: str = ""

    @property
    def title(self) -> str:
        """The modules in a few words, and how many boxes it stands for if they are several."""
        shown = self.modules if len(self.modules) <= 5 else (*self.modules[:2], "…", *self.modules[-2:])
        times = f"{self.count} × " if self.count > 1 else ""
        return times + (", ".join(shown) or "no module of its own")

    def lines(self, name: str) -> tuple[str, ...]:
        """What stands in the box, for a component of that name."""
        return self.label or (f"{name} {self.index}", self.title, *self.facts)

    @property
    def facts(self) -> tuple[str, ...]:
        """What it weighs, and what crosses inside."""
        inside = (f"{format_bytes(self.inside)} cross inside",) if self.inside else ()
        return (f"{format_bytes(self.nbytes)} of weights" if self.nbytes else "no weights", *inside)


@dataclass(frozen=True)
class Edge:
    """What flows from one box to another; None stands for the inputs, or for the results.

    ``crosses`` says that it goes from one device to another.
    """

    source: int | None
    target: int | None
    values: tuple[str, ...]
    nbytes: int
    crosses: bool = True

    @property
    def title(self) -> str:
        """How many bytes, and of how many values if there are several."""
        several = f" in {len(self.values)} values" if len(self.values) > 1 else ""
        return format_bytes(self.nbytes) + several


@dataclass(frozen=True)
class Outline:
    """The boxes of a program in order, and what flows between them."""

    name: str
    devices: tuple[Device, ...]
    parts: tuple[Part, ...]
    edges: tuple[Edge, ...]

    @property
    def places(self) -> dict[str, None]:
        """Where boxes run: the devices, and the groups of devices that share some."""
        return dict.fromkeys([*(device.name for device in self.devices), *(part.where for part in self.parts)])


def outline(program: Program, name: str = "", depth: str = "segments") -> Outline:
    """The outline of a cut program, of its segments or blocks; raises PassError when it was not cut.

    At segments only what crosses between devices is an edge, and at blocks all that flows.
    """
    if not program.segments:
        raise PassError(f"{program.name} has no segments to draw: run the passes up to cut first")
    groups = GROUPED[depth](program)
    parts, part_at = folded_groups(program, groups)
    part_of = {node: part_at[place] for place, group in enumerate(groups) for node in group.nodes}
    flows = depth == "blocks" or (depth == "segments" and program.is_grouped)
    return assembled(program, name, parts, part_of, flows=flows)


def assembled(program: Program, name: str, parts: Sequence[Part], part_of: dict[Node, int], *, flows: bool) -> Outline:
    """The outline of boxes, given the box of each operation; with all that flows, or what crosses devices alone."""
    edges = list(_crossing_edges(program, part_of))
    if flows:
        edges += _flow_edges(program, part_of, edges)
    merged = _merged(edges)
    inside = {edge.source: edge.nbytes for edge in merged if edge.source == edge.target and edge.crosses}
    shown = tuple(_with_inside(part, inside.get(part.index, 0)) for part in parts)
    return Outline(name or program.name, program.devices, shown, tuple(e for e in merged if e.source != e.target))


def _kind(group: Group) -> tuple[object, ...]:
    """What is equal of two groups that are alike: the same operations, wired alike, in the same shapes."""
    return group.where, _DIGITS.sub("#", group.unit), text_of(group.nodes) if group.unit else id(group)


def folded_groups(program: Program, groups: Sequence[Group]) -> tuple[list[Part], dict[int, int]]:
    """The boxes, of groups that are alike and follow each other one, and the number of the box for each group."""
    found = repeats([_kind(group) for group in groups])
    parts: list[Part] = []
    at: dict[int, int] = {}
    for one in found:
        for offset in range(one.period):
            places = range(one.start + offset, one.stop, one.period)
            at |= dict.fromkeys(places, len(parts))
            parts.append(_part(program, len(parts), [groups[place] for place in places]))
    return parts, at


def _part(program: Program, index: int, alike: Sequence[Group]) -> Part:
    nodes = [node for group in alike for node in group.nodes]
    modules, weights = modules_of(nodes, unit_finder(program.blocks))
    nbytes, first = program.nbytes_of(weights), alike[0]
    return Part(index, first.where, len(nodes), modules, len(weights), nbytes, len(alike), 0, first.nodes)


def modules_of(nodes: Sequence[Node], find: UnitFinder) -> tuple[tuple[str, ...], Collection[str]]:
    """The blocks and modules that operations compute, and the names of the weights that they read."""
    weights = dict.fromkeys(name for node in nodes for name in placement_of(node).weights)
    paths = [name.rpartition(".")[0] for name in weights] or [origin_of(node).module for node in nodes]
    return spans([*dict.fromkeys(find(path) for path in paths if path)]), weights.keys()


def _with_inside(part: Part, inside: int) -> Part:
    return replace(part, inside=inside) if inside else part


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


def _crossing_edges(program: Program, part_of: dict[Node, int]) -> Iterator[Edge]:
    """What crosses between devices, by the boxes at its ends: inputs and results have none.

    Where each device but takes its part of what it has, nothing crosses.
    """
    for transfer in program.transfers():
        ends = part_of.get(maker_of(transfer)), part_of.get(first_reader(transfer))
        nbytes = sum(size for _, _, size in sent(program, transfer))
        yield Edge(*ends, (original(transfer).name,), nbytes, crosses=nbytes > 0)


def _flow_edges(program: Program, part_of: dict[Node, int], crossing: Sequence[Edge]) -> Iterator[Edge]:
    """What flows from box to box within a device, and to later readers of what has crossed."""
    known = {(edge.source, edge.target) for edge in crossing}
    seen: set[tuple[Node, int]] = set()
    for reader, target in part_of.items():
        for value in map(original, reader.all_input_nodes):
            source = part_of.get(value)
            is_known = weight_name(value) or (value, target) in seen or (source, target) in known
            if not is_known and source != target and tensors_of(value):
                seen.add((value, target))
                nbytes = sum(tensor.nbytes for tensor in tensors_of(value))
                yield Edge(source, target, (value.name,), nbytes, crosses=False)
    for value in map(original, program.output.all_input_nodes):
        if value in part_of and (part_of[value], None) not in known:
            yield Edge(part_of[value], None, (value.name,), sum(one.nbytes for one in tensors_of(value)), crosses=False)


def _merged(edges: Sequence[Edge]) -> list[Edge]:
    """One edge for all between the same two boxes; of what repeats, that of all repeats."""
    grouped: dict[tuple[int | None, int | None, bool], list[Edge]] = {}
    for edge in edges:
        grouped.setdefault((edge.source, edge.target, edge.crosses), []).append(edge)
    return [
        Edge(source, target, tuple(dict.fromkeys(name for e in found for name in e.values)),
             sum(e.nbytes for e in found), crosses)
        for (source, target, crosses), found in grouped.items()
    ]  # fmt: skip
