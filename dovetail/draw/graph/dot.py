"""A DOT graph for Graphviz: devices as clusters around what runs there."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import groupby, pairwise
from textwrap import wrap

from ...compiler.ir.program import Program
from ..outline.outline import Edge, Outline, Part
from .depths import Drawing, Limits, fitted

LIMITS = Limits(edges=1500)
"""More than that Graphviz takes minutes for, and nobody can read."""
_WIDE = 40
"""Longer lines are broken: Graphviz guesses how wide text is, and guesses long lines too narrow."""
_BESIDE = " " * 3
_IN_A_ROW = 10
"""More boxes follow each other downwards."""
_LIGHT = ("#dce8fb", "#fde8d5", "#d9f2e6", "#efe0f8", "#fadbe1", "#d5f0f4", "#f3ead0", "#e3e4fa")
_DARK = ("#3b74d8", "#e07b24", "#2f9e6e", "#9c51c9", "#d6455d", "#1795a8", "#a5832a", "#6b6fd6")
_BLOCK = 'style="rounded,filled"; fillcolor="#ffffff99"; color="#98a1b0"; fontcolor="#3a4150";'
_HEAD = (
    '  graph [fontname="Helvetica,Arial,sans-serif", fontsize=13, bgcolor="white", pad=0.3, nodesep=0.3, ranksep=0.7];',
    '  node [shape=box, style="rounded,filled", fillcolor="white", color="#98a1b0", fontsize=11, margin="0.22,0.1",'
    ' fontname="Helvetica,Arial,sans-serif"];',
    '  edge [color="#3a4150", fontsize=10, fontname="Helvetica,Arial,sans-serif"];',
)


def dot(programs: Mapping[str, Program], depth: str = "segments") -> str:
    """The graph of one component or several, by their names; it says what `mermaid` says."""
    return fitted(programs, depth, LIMITS, _written)


def _written(drawing: Drawing) -> str:
    drawn = drawing.outlines
    all_devices = {device for one in drawn for device in one.devices}
    devices = sorted(all_devices, key=lambda one: (one.is_host, one.kind, one.index))
    places = dict.fromkeys([*(one.name for one in devices), *(place for one in drawn for place in one.places)])
    boxes = sum(len(one.parts) for one in drawn)
    is_row = boxes <= _IN_A_ROW
    way = "rankdir=LR; newrank=true" if is_row else "rankdir=TB"
    lines: list[str] = ["digraph placement {", f"  {way};", *_HEAD]
    lines += [f"  label={_quoted(chr(10).join(drawing.notes))};"] if drawing.notes else []
    for number, place in enumerate(places):
        lines += _cluster(place, number, drawn)
    for one in drawn:
        lines += [_arrow(one, edge) for edge in one.edges]
    for before, after in pairwise(drawn):
        ends = f"{_id(before, before.parts[-1].index)} -> {_id(after, after.parts[0].index)}"
        lines.append(f"  {ends} [style=dotted];")
    return "\n".join([*lines, "}"])


def _cluster(place: str, number: int, drawn: Sequence[Outline]) -> list[str]:
    inside = [line for one in drawn for line in _contents(one, place)]
    if not inside:
        return []
    light, dark = _LIGHT[number % len(_LIGHT)], _DARK[number % len(_DARK)]
    style = f'style="rounded,filled"; fillcolor="{light}"; color="{dark}"; fontcolor="{dark}"; margin=14;'
    name = f"label={_quoted(place)}; labelloc=b; labeljust=l;"
    head = [f"  subgraph {_quoted(f'cluster_{place}')} {{", f"    {name} {style}"]
    return [*head, *inside, "  }"]


def _contents(one: Outline, place: str) -> list[str]:
    lines: list[str] = []
    here = [part for part in one.parts if part.where == place]
    for within, parts in groupby(here, lambda part: part.within):
        lines += _within(one, within, [*parts])
    ends = {"inputs": [edge.source for edge in one.edges], "results": [edge.target for edge in one.edges]}
    if place == one.devices[0].name:
        lines += [f"    {_id(one, None, word)} [shape=ellipse];" for word, found in ends.items() if None in found]
    return lines


def _within(one: Outline, within: str, parts: Sequence[Part]) -> Iterator[str]:
    texts = {p.index: "\n".join(line for said in p.lines(one.name) for line in wrap(said, _WIDE)) for p in parts}
    boxes = [f"    {_id(one, index)} [label={_quoted(text)}];" for index, text in texts.items()]
    if not within:
        yield from boxes
        return
    yield f"    subgraph {_quoted(f'cluster_{one.name} {parts[0].index} block')} {{"
    yield f"      label={_quoted(within)}; {_BLOCK}"
    yield from (f"  {box}" for box in boxes)
    yield "    }"


def _arrow(one: Outline, edge: Edge) -> str:
    """An arrow, and what crosses: with room around it, for Graphviz keeps other arrows out of no more than the text."""
    ends = f"{_id(one, edge.source, 'inputs')} -> {_id(one, edge.target, 'results')}"
    if not edge.crosses:
        return f'  {ends} [color="#98a1b0", arrowsize=0.7];'
    said = f"\n{_BESIDE}{edge.title}{_BESIDE}\n"
    return f"  {ends} [label={_quoted(said)}, penwidth=1.6];"


def _id(one: Outline, index: int | None, otherwise: str = "") -> str:
    return _quoted(f"{one.name} {otherwise if index is None else index}")


def _quoted(text: str) -> str:
    """Text in quotes as DOT has it: a line end is written, anything else that is not seen gives way to a blank."""
    seen = "".join(one if one.isprintable() or one == "\n" else " " for one in text)
    return '"' + seen.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n") + '"'
