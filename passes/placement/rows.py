"""Row split: gives each device some rows of every large matrix of the blocks, and all other weights the main device.

The program stays on the main device; the others only multiply, each its rows, and the parts of a result are gathered.
It pays where a block is too large for a device, where blocks are few, or where the devices are linked so well that they
are better busy at the same time than one after another. ``compiler/ir/eligibility.py`` says which weights are sliced,
``row_split_rewrite.py`` rewrites the graph, and the passes that follow find what crosses. It stands in the place of
``place``, which it falls back to where there is nothing to slice.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any, ClassVar

from torch.fx import Node

from ...compiler.devices.device import Device
from ...compiler.errors import UsageError
from ...compiler.ir.eligibility import marked_weights
from ...compiler.ir.program import Program, tensors_of
from ...compiler.ir.slices import bounds_of
from ...compiler.ir.weight import Weight
from ..analysis.liveness import peak_bytes
from ..analysis.memory_needs import Need
from ..infra.base import Change, Pass
from .assignment import Assignment, assigned, check_needs, commit, excess, needs_under
from .place import Place

logger = logging.getLogger(__name__)

_TRIES = 3  # of other shares, each with what the ones before turned out to need


@dataclass(frozen=True)
class Rows(Pass):
    """Slices the rows of eligible weights over the program's devices.

    ``shares`` and ``headroom`` mean what they mean to ``place``. Weights that other programs of the component slice
    already, within ``Program.bounds``, are sliced alike, and all others in the same ratio.
    """

    name: ClassVar[str] = "rows"
    requires: ClassVar[frozenset[str]] = frozenset({"blocks found"})
    ensures: ClassVar[frozenset[str]] = frozenset({"placed"})
    refuses: ClassVar[frozenset[str]] = frozenset({"placed"})

    shares: tuple[float, ...] = ()
    headroom: int | None = None

    def run(self, program: Program) -> Change:
        """Decides, checks, and only then slices and rewrites.

        Raises DoesNotFitError when a device cannot hold its part; the program is as it was then.
        """
        marks = marked_weights(program)
        decision = decide(program, program.rig.free, self.shares, self.headroom)
        if isinstance(decision, str):
            _tell(program.name, decision)
            return Place(self.shares, self.headroom).run(program)
        check_needs(program, decision.needs)
        gathers = commit(program, decision.assignment)
        return Change(len(marks), f"weights split by rows, {gathers} results gathered")


@dataclass(frozen=True)
class Decision:
    """An assignment, and what each device needs under it."""

    assignment: Assignment
    needs: Mapping[Device, Need]


def row_split(
    program: Program,
    free: Mapping[Device, int],
    shares: Sequence[float] = (),
    headroom: int | None = None,
) -> Assignment:
    """The assignment of a row split of a program whose blocks were found; it may exceed what is free.

    Raises UsageError where nothing can be split by rows.
    """
    decision = decide(program, free, shares, headroom)
    if isinstance(decision, str):
        raise UsageError(f"{program.name} cannot be split by rows, for {decision}: split it by layers")
    return decision.assignment


def decide(
    program: Program, free: Mapping[Device, int], shares: Sequence[float] = (), headroom: int | None = None
) -> Decision | str:
    """The first decision that fits, or that which lacks least; why nothing can be split, if so. Changes nothing.

    Each try knows what devices turned out to need in the one before.
    """
    marks = marked_weights(program)
    ratio = first_ratio(program, free, shares, headroom)
    is_free = not _known_ratio(program) and not shares
    reason = _why_not(program, marks, ratio)
    if reason:
        return reason
    best = found = _decision(program, marks, ratio, headroom)
    for _ in range(_TRIES if is_free else 0):
        if excess(best.needs, free) <= 0:
            break
        ratio = _proportional(program, free, marks, [found.needs[device].beside for device in program.devices])
        if not ratio or _why_not(program, marks, ratio):
            break
        found = _decision(program, marks, ratio, headroom)
        best = min(best, found, key=lambda one: excess(one.needs, free))
    return best


def first_ratio(
    program: Program, free: Mapping[Device, int], shares: Sequence[float] = (), headroom: int | None = None
) -> tuple[float, ...]:
    """The part of each device that is tried first: what is known, what was asked for, or by free memory."""
    known = _known_ratio(program) or _asked(shares, len(free))
    if known or shares:
        return known
    marks = marked_weights(program)
    alive = [headroom] * len(free) if headroom is not None else _alive_first(program, marks)
    return _proportional(program, free, marks, alive)


def _decision(program: Program, marks: Mapping[Node, Weight], ratio: Sequence[float], headroom: int | None) -> Decision:
    sliced = {weight.name for weight in marks.values()}
    homes = {name: program.main if name in sliced else program.home.get(name, program.main) for name in program.weights}
    bounds = {one.name: program.bounds.get(one.name) or bounds_of(one.shape[0], ratio) for one in marks.values()}
    assignment = assigned(program, homes, bounds)
    return Decision(assignment, needs_under(program, assignment, headroom))


def _known_ratio(program: Program) -> tuple[float, ...]:
    """In what ratio weights are sliced already by other programs of the component: that of the one of most rows."""
    known = max(program.bounds.values(), key=lambda bounds: bounds[-1][1], default=())
    return tuple((stop - start) / known[-1][1] for start, stop in known)


def _asked(shares: Sequence[float], count: int) -> tuple[float, ...]:
    """The part of each device as asked for, summing to 1."""
    offers = [*shares, *[0.0] * count][:count]
    return tuple(offer / sum(offers) for offer in offers) if any(offers) else ()


def _alive_first(program: Program, marks: Mapping[Node, Weight]) -> list[int]:
    """What is alive on each device at least, before more is known: what is multiplied, on the main device all."""
    least = max((_nbytes(user.args[0]) for node in marks for user in node.users), default=0)
    return [peak_bytes(program), *[least] * (len(program.devices) - 1)]


def _nbytes(value: Any) -> int:
    return sum(tensor.nbytes for tensor in tensors_of(value)) if isinstance(value, Node) else 0


def _proportional(
    program: Program, free: Mapping[Device, int], marks: Mapping[Node, Weight], alive: Sequence[int]
) -> tuple[float, ...]:
    """Shares in proportion to free memory less what is alive, and on the main device less what only it holds."""
    offers = [float(max(free[device] - most, 0)) for device, most in zip(program.devices, alive, strict=True)]
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
