"""How deep programs are drawn: as was asked, or less deep where a picture would be larger than what it may be.

What is drawn less deep is said in a note that is part of the picture.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from ...compiler.errors import UsageError
from ...compiler.ir.program import Program
from ..outline.grouping import DEPTHS
from ..outline.outline import Outline, outline
from .unfolded import unfolded

_ROOMS = (400, 200, 100)
"""So many operations are drawn one by one, fewer where that is too much."""


@dataclass(frozen=True)
class Limits:
    """The most arrows, and the most characters, that a picture may have."""

    edges: int
    characters: int | None = None


@dataclass(frozen=True)
class Drawing:
    """The outlines of programs in the order of their calls, and what a person must be told of them."""

    outlines: tuple[Outline, ...]
    notes: tuple[str, ...] = ()

    @property
    def edges(self) -> int:
        """How many arrows there are."""
        return sum(len(one.edges) for one in self.outlines)


def fitted(programs: Mapping[str, Program], depth: str, limits: Limits, write: Callable[[Drawing], str]) -> str:
    """What ``write`` makes of the deepest drawing, from ``depth`` on, that is within the limits.

    Raises UsageError for no such depth, and PassError for programs that were not cut.
    """
    if depth not in DEPTHS:
        raise UsageError(f"{depth!r} is no depth of a picture: it is one of {', '.join(DEPTHS)}")
    text = ""
    for drawing in _drawings(programs, depth):
        if drawing.edges > limits.edges:
            continue
        text = write(drawing)
        if limits.characters is None or len(text) <= limits.characters:
            break
    return text


def _drawings(programs: Mapping[str, Program], depth: str) -> Iterator[Drawing]:
    """Drawings of the programs, each less deep than the one before."""
    for room in _ROOMS if depth == "nodes" else ():
        both = [unfolded(program, name, room) for name, program in programs.items()]
        yield Drawing(tuple(one for one, _ in both), tuple(note for _, notes in both for note in notes))
    for one in _coarser(depth):
        told = "" if one == depth else f"drawn by {one}, for by {depth} the picture would be too large"
        yield Drawing(tuple(outline(program, name, one) for name, program in programs.items()), (told,) if told else ())


def _coarser(depth: str) -> Sequence[str]:
    return {"nodes": ("blocks", "segments", "devices"), "blocks": ("blocks", "segments", "devices")}.get(
        depth, ("segments", "devices")
    )
