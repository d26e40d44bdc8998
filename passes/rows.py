"""Row split: gives each device some rows of every large matrix of the blocks, and all other weights the main device.

The program stays on the main device; the others only multiply, each its rows, and the parts of a result are gathered.
It pays where a block is too large for a device, where blocks are few, or where the devices are linked so well that
they are better busy at the same time than one after another. ``analysis/eligibility.py`` says which weights are sliced,
``row_split_rewrite.py`` rewrites the graph, and the passes that follow find what crosses. Stands in the place of
``place``, which it falls back to where there is nothing to slice.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any, ClassVar

from torch.fx import Node

from ..compiler.ir.program import Program, Weight, tensors_of
from ..compiler.ir.slices import bounds_of
from ..compiler.spec.devices import Device
from .analysis.eligibility import marked_weights
from .analysis.liveness import peak_bytes
from .analysis.memory_needs import Need, needs_of
from .base import Change, Pass
from .pin import pinned
from .place import Place, check_fit
from .row_split_rewrite import split_matmuls

logger = logging.getLogger(__name__)

_TRIES = 3  # of other shares, each with what the ones before turned out to need


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
        """Marks, slices and rewrites a copy; the program takes it over if each device can hold its part.

        Raises DoesNotFitError when one cannot; the program is then as it was.
        """
        marks = marked_weights(program)
        shares = program.shares or self._shares(program, marks)
        reason = _why_not(program, marks, shares)
        if reason:
            _tell(program.name, reason)
            return Place(self.shares, self.headroom).run(program)
        trial = self._best(program, shares)
        check_fit(trial.program, trial.needs)
        trial.commit(program)
        return Change(len(marks), f"weights split by rows, {trial.gathers} results gathered")

    def _best(self, program: Program, shares: tuple[float, ...]) -> _Trial:
        """The first that fits, each with what the one before turned out to need; or that which lacks least."""
        best = trial = _Trial.of(program, shares, self.headroom)
        for _ in range(_TRIES if not (program.shares or self.shares) else 0):
            if best.excess <= 0:
                break
            alive = [trial.needs[device].values for device in program.devices]
            shares = _proportional(program, marked_weights(program), alive)
            if not shares or _why_not(program, marked_weights(program), shares):
                break
            trial = _Trial.of(program, shares, self.headroom)
            best = min(best, trial, key=lambda one: one.excess)
        return best

    def _shares(self, program: Program, marks: Mapping[Node, Weight]) -> tuple[float, ...]:
        """The part of each device: as asked, or its free memory, less what it must hold besides."""
        if self.shares:
            offers = [*self.shares, *[0.0] * len(program.devices)][: len(program.devices)]
            return tuple(offer / sum(offers) for offer in offers) if any(offers) else ()
        beside = [self.headroom] * len(program.devices) if self.headroom is not None else _alive_first(program, marks)
        return _proportional(program, marks, beside)


@dataclass(frozen=True)
class _Trial:
    """A copy of a program that was split by rows, and what each device needs to run it."""

    program: Program
    gathers: int
    needs: Mapping[Device, Need]

    @staticmethod
    def of(program: Program, shares: tuple[float, ...], headroom: int | None) -> _Trial:
        """Splits a copy; the program stays as it is."""
        copy = program.copy()
        copy.shares = shares
        gathers = split_matmuls(copy, marked_weights(copy), shares)
        copy.home = {name: copy.home.get(name, copy.main) for name in copy.weights}
        places = {node: device for node, (device, _) in pinned(copy, copy.home).items()}
        return _Trial(copy, gathers, needs_of(copy, places, headroom))

    @property
    def excess(self) -> int:
        """By how many bytes the device that is most over has too little."""
        return max(need.total - self.program.rig[device].free for device, need in self.needs.items())

    def commit(self, program: Program) -> None:
        """Makes a program what the copy is."""
        for name in ("graph", "weights", "blocks", "home", "shares"):
            setattr(program, name, getattr(self.program, name))


def _alive_first(program: Program, marks: Mapping[Node, Weight]) -> list[int]:
    """What is alive on each device at least, before more is known: what is multiplied, on the main device all."""
    least = max((_nbytes(user.args[0]) for node in marks for user in node.users), default=0)
    return [peak_bytes(program), *[least] * (len(program.devices) - 1)]


def _nbytes(value: Any) -> int:
    return sum(tensor.nbytes for tensor in tensors_of(value)) if isinstance(value, Node) else 0


def _proportional(program: Program, marks: Mapping[Node, Weight], alive: Sequence[int]) -> tuple[float, ...]:
    """Shares in proportion to free memory less what is alive, and on the main device less what only it holds."""
    offers = [float(max(free - most, 0)) for free, most in zip(program.rig.free.values(), alive, strict=True)]
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
