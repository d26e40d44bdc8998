"""Says of a plan that streams weights in which packed types they would stay on their devices, and how quick that is.

Each type costs one search, as the plan itself did; nothing is traced or lowered. Where one search took long, the types
after it are left out.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from ..compiler.durations import seconds_text
from ..compiler.ir.schedule import Lifetime
from ..fitting.decide import Decision
from ..passes.fit.search import search
from ..passes.fit.solution import Solution
from ..passes.fit.ways_out import TYPES, in_packed_type
from .generation import Generation

_MOST = 1.0
"""The seconds that all searches may take together."""


class InType(NamedTuple):
    """Components of which nothing would be streamed in a packed type, and the seconds of a picture by the search."""

    names: tuple[str, ...]
    quant: str
    seconds: float


def types_of(generation: Generation, decision: Decision | None) -> list[InType]:
    """The types in which nothing would be streamed of what is.

    None where nothing was searched, nothing is streamed, or no type that is tried helps.
    """
    names = _streamed(generation)
    if decision is None or not names:
        return []
    return [InType(tuple(sorted(names)), quant, one.seconds) for quant, one in _searched(decision, names)]


def told_of_types(types: Sequence[InType], spread: float) -> list[str]:
    """A line that names these types with their seconds, of which a part may be off; none where there are none."""
    if not types:
        return []
    names, first, _ = types[0]
    each = ", ".join(f"{quant}: {seconds_text(seconds, spread)} s" for _, quant, seconds in types)
    option = ",".join(f"{name}={first.lower()}" for name in names)
    return [f"{' and '.join(names)} would not be streamed in a packed type ({each}): --quant {option}"]


def _streamed(generation: Generation) -> set[str]:
    """The components of which weights are brought anew in each call, and that are not packed already."""
    calls = [call for call in generation.calls if any(piece.lasts is Lifetime.STAGE for piece in call.pieces)]
    packed = {call.component for call in calls if any(one.quant for one in call.program.weights.values())}
    return {call.component for call in calls if call.role != "vae"} - packed


def _searched(decision: Decision, names: set[str]) -> Iterator[tuple[str, Solution]]:
    """The types in which a search finds a way that streams nothing of some components, each with it."""
    started = time.perf_counter()
    for quant in TYPES:
        if time.perf_counter() - started + decision.searched > _MOST:
            return
        found = search(in_packed_type(decision.loads, names, quant), decision.machine, decision.granted)
        if found is not None and not any(nbytes for name in names for nbytes in found.ways[name].streamed.values()):
            yield quant, found
