"""Row split: gives each device some rows of every large matrix of the blocks, and all other weights the main device.

The program stays on the main device; the others only multiply, each its rows, and the parts of a result are gathered.
It pays where a block is too large for a device, where blocks are few, or where the devices are linked so well that
they are better busy at the same time than one after another. Which weights are sliced says ``marks.py``, how the graph
is rewritten says ``apart.py``; the passes that follow find what crosses. Stands in the place of ``place``, which it
falls back to where there is nothing to slice.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import ClassVar

from torch.fx import Node

from ..compiler.program import Program, Weight
from ..compiler.slices import bounds_of
from .apart import split_matmuls
from .base import Change, Pass
from .liveness import peak_bytes
from .marks import marked_weights
from .place import Place, check_fit, offers_of

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class Rows(Pass):
    """Slices the rows of eligible weights over the program's devices.

    ``shares`` and ``headroom`` mean what they mean to ``place``. The shares that were taken are kept on the program; a
    program that has some already is sliced by those, so that all programs of a component slice alike.
    """

    name: ClassVar[str] = "rows"
    requires: ClassVar[frozenset[str]] = frozenset({"blocks found"})
    ensures: ClassVar[frozenset[str]] = frozenset({"placed"})
    refuses: ClassVar[frozenset[str]] = frozenset({"placed"})

    shares: tuple[float, ...] = ()
    headroom: int | None = None

    def run(self, program: Program) -> Change:
        """Marks, slices and rewrites; raises DoesNotFitError when a device cannot hold its slices."""
        marks = marked_weights(program)
        headroom = peak_bytes(program) if self.headroom is None else self.headroom
        shares = program.shares or self._shares(program, marks, headroom)
        reason = _why_not(program, marks, shares)
        if reason:
            _tell(program.name, reason)
            return Place(self.shares, self.headroom).run(program)
        program.shares = shares
        count = split_matmuls(program, marks, shares)
        program.home = {name: program.home.get(name, program.main) for name in program.weights}
        check_fit(program, headroom)
        return Change(len(marks), f"weights split by rows, {count} results gathered")

    def _shares(self, program: Program, marks: Mapping[Node, Weight], headroom: int) -> tuple[float, ...]:
        """The part of each device: as asked, or its free memory, less on the main device what only it holds."""
        offers = offers_of(program.devices, self.shares, headroom)
        if not self.shares:
            sliced = sum(weight.nbytes for weight in marks.values())
            rest = sum(weight.nbytes for weight in program.weights.values()) - sliced
            offers[0] = max(offers[0] - rest, 0.0)
        return tuple(offer / sum(offers) for offer in offers) if any(offers) else ()


def _why_not(program: Program, marks: Mapping[Node, Weight], shares: Sequence[float]) -> str:
    """Why nothing can be split by rows, if it cannot."""
    if len(program.devices) == 1:
        return f"it has one device, {program.main}"
    if not marks:
        return "none of its weights is a matrix of a block, of 256 rows and columns or more, that is only multiplied by"
    rows = {weight.shape[0] for weight in marks.values()}
    bounds = [bounds_of(count, shares) for count in rows] if shares else []
    takers = {place for each in bounds for place, (start, stop) in enumerate(each) if start < stop}
    return f"only {program.main} gets a row" if takers <= {0} else ""


@cache
def _tell(name: str, reason: str) -> None:
    """Says once why a program is not split by rows, and what that means."""
    logger.log(
        logging.INFO if "one device" in reason else logging.WARNING,
        "%s cannot be split by rows, for %s: its blocks are placed whole, a range a device, and run one after another",
        name, reason,
    )  # fmt: skip
