"""A DOT graph for Graphviz: devices as clusters around segments."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import pairwise

from ..compiler.ir.program import Program
from ..compiler.spec.units import format_bytes
from .outline import Outline, outline


def dot(programs: Mapping[str, Program]) -> str:
    """The graph of one component or several, by their names; it says what `mermaid` says."""
    drawn = [outline(program, name) for name, program in programs.items()]
    places = dict.fromkeys(place for one in drawn for place in one.places)
    lines = ["digraph placement {", "  rankdir=LR;", "  node [shape=box];"]
    for place in places:
        lines += _cluster(place, drawn)
    for one in drawn:
        for edge in one.edges:
            ends = f"{_id(one, edge.source, 'inputs')} -> {_id(one, edge.target, 'results')}"
            lines.append(f"  {ends} [label={_quoted(edge.title)}];")
    for before, after in pairwise(drawn):
        ends = f"{_id(before, before.parts[-1].index)} -> {_id(after, after.parts[0].index)}"
        lines.append(f"  {ends} [style=dotted];")
    return "\n".join([*lines, "}"])


def _cluster(place: str, drawn: Sequence[Outline]) -> list[str]:
    inside = [line for one in drawn for line in _contents(one, place)]
    if not inside:
        return []
    return [f"  subgraph {_quoted(f'cluster_{place}')} {{", f"    label={_quoted(place)};", *inside, "  }"]


def _contents(one: Outline, place: str) -> list[str]:
    lines = []
    for part in one.parts:
        if part.where == place:
            text = f"{one.name} {part.index}\n{part.title}\n{format_bytes(part.nbytes)} of weights"
            lines.append(f"    {_id(one, part.index)} [label={_quoted(text)}];")
    ends = {"inputs": [edge.source for edge in one.edges], "results": [edge.target for edge in one.edges]}
    if place == one.devices[0].name:
        lines += [f"    {_id(one, None, word)} [shape=ellipse];" for word, found in ends.items() if None in found]
    return lines


def _id(one: Outline, index: int | None, otherwise: str = "") -> str:
    return _quoted(f"{one.name} {otherwise if index is None else index}")


def _quoted(text: str) -> str:
    """Text in quotes as DOT has it: a line end is written, anything else that is not seen gives way to a blank."""
    seen = "".join(one if one.isprintable() or one == "\n" else " " for one in text)
    return '"' + seen.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n") + '"'
