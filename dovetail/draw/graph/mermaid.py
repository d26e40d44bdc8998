"""A Mermaid flowchart, which GitHub and many editors show as a picture: devices as boxes around what runs there."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from itertools import groupby, pairwise

from ...compiler.ir.program import Program
from ..outline.outline import Edge, Outline, Part
from .depths import Drawing, Limits, fitted

LIMITS = Limits(edges=480, characters=49_000)
"""Mermaid refuses more than 500 arrows or 50,000 characters."""
_LIST = re.compile(r"^(\d+)([.)])(?=\s)|^([-*+])(?=\s)")


def mermaid(programs: Mapping[str, Program], depth: str = "segments") -> str:
    """The flowchart of one component or several, by their names, in the order in which they are called.

    A solid arrow with bytes is what crosses from one device to another; a dotted one leads to the component that is
    called next. What would be more than Mermaid draws is drawn less deep, which a note in it says.

    Raises UsageError for no such depth, and PassError for programs that were not cut.
    """
    return fitted(programs, depth, LIMITS, _written)


def _written(drawing: Drawing) -> str:
    drawn = drawing.outlines
    places = dict.fromkeys(place for one in drawn for place in one.places)
    lines = ["flowchart LR"]
    for place in places:
        lines += _box(place, drawn)
    for one in drawn:
        lines += [_arrow(one, edge) for edge in one.edges]
    lines += [f"  {_last(before)} -.-> {_first(after)}" for before, after in pairwise(drawn)]
    lines += [f'  note_{number}>"{_escape(note)}"]' for number, note in enumerate(drawing.notes)]
    return "\n".join(lines)


def _box(place: str, drawn: Sequence[Outline]) -> list[str]:
    inside = [line for one in drawn for line in _contents(one, place)]
    return [f'  subgraph {_word(place)}["{_escape(place)}"]', *inside, "  end"] if inside else []


def _contents(one: Outline, place: str) -> list[str]:
    lines = []
    if place == one.devices[0].name:
        if any(edge.source is None for edge in one.edges):
            lines.append(f'    {_id(one, None, "in")}(["{_escape(one.name)}: inputs"])')
        if any(edge.target is None for edge in one.edges):
            lines.append(f'    {_id(one, None, "out")}(["{_escape(one.name)}: results"])')
    here = [part for part in one.parts if part.where == place]
    for within, parts in groupby(here, lambda part: part.within):
        lines += _within(one, within, [*parts])
    return lines


def _within(one: Outline, within: str, parts: Sequence[Part]) -> Iterator[str]:
    boxes = [f'    {_id(one, p.index)}["{"<br/>".join(map(_escape, p.lines(one.name)))}"]' for p in parts]
    if not within:
        yield from boxes
        return
    yield f'    subgraph {_id(one, parts[0].index)}_block["{_escape(within)}"]'
    yield from (f"  {box}" for box in boxes)
    yield "    end"


def _arrow(one: Outline, edge: Edge) -> str:
    said = f'-- "{edge.title}" -->' if edge.crosses else "-->"
    return f"  {_id(one, edge.source, 'in')} {said} {_id(one, edge.target, 'out')}"


def _id(one: Outline, index: int | None, otherwise: str = "") -> str:
    return f"{_word(one.name)}_{otherwise if index is None else index}"


def _word(text: str) -> str:
    """A word for a box; letters that Mermaid may read as more than a word are spelled by their numbers."""
    return "".join(map(_letter, text))


def _letter(letter: str) -> str:
    if (letter.isascii() and letter.isalnum()) or letter == "_":
        return letter
    return "__" if letter == "." else f"_{ord(letter):x}_"


def _first(one: Outline) -> str:
    return _id(one, one.parts[0].index)


def _last(one: Outline) -> str:
    return _id(one, one.parts[-1].index)


def _escape(text: str) -> str:
    """Text between quotes: what could end it, begin a tag, a list or a statement, or is not seen, by its number."""
    shown = "".join(one if one.isprintable() and one not in '"<>&#;`\\' else f"#{ord(one)};" for one in text)
    return _LIST.sub(lambda match: f"{match[1] or ''}#{ord(match[2] or match[3])};", shown)
