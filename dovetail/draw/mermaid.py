"""A Mermaid flowchart, which GitHub and many editors show as a picture: devices as boxes around segments."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import pairwise

from ..compiler.ir.program import Program
from ..compiler.spec.units import format_bytes
from .outline import Edge, Outline, outline


def mermaid(programs: Mapping[str, Program]) -> str:
    """The flowchart of one component or several, by their names, in the order in which they are called.

    A solid arrow is what crosses from one device to another; a dotted one leads to the component that is called next.
    """
    drawn = [outline(program, name) for name, program in programs.items()]
    places = dict.fromkeys(place for one in drawn for place in one.places)
    lines = ["flowchart LR"]
    for place in places:
        lines += _box(place, drawn)
    for one in drawn:
        lines += [_arrow(one, edge) for edge in one.edges]
    lines += [f"  {_last(before)} -.-> {_first(after)}" for before, after in pairwise(drawn)]
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
    for part in one.parts:
        if part.where == place:
            said = (f"{one.name} {part.index}", part.title, f"{format_bytes(part.nbytes)} of weights")
            lines.append(f'    {_id(one, part.index)}["{"<br/>".join(map(_escape, said))}"]')
    return lines


def _arrow(one: Outline, edge: Edge) -> str:
    return f'  {_id(one, edge.source, "in")} -- "{edge.title}" --> {_id(one, edge.target, "out")}'


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
    """Text between quotes: what could end it, begin a tag or a statement, or is not seen, by its number."""
    return "".join(one if one.isprintable() and one not in '"<>&#;`\\' else f"#{ord(one)};" for one in text)
