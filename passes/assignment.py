"""An assignment: which device, or which rows on which devices, each weight gets, and where it is kept.

A policy (a layer split, a row split, a device map) makes one and changes nothing. ``check`` accepts or refuses it, with
both numbers. ``commit`` writes it to the program. So a program that is refused is as it was, and one traced program can
be lowered under many assignments, each on a copy.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

from ..compiler.errors import DoesNotFitError, UsageError
from ..compiler.ir.program import Program
from ..compiler.ir.slices import Bounds
from ..compiler.spec.devices import Device
from ..compiler.spec.residency import Residency
from ..compiler.spec.units import format_bytes
from .analysis.eligibility import bias_of, marked_weights
from .analysis.memory_needs import Need, needs_of
from .base import Change, Pass
from .hoist import Hoist
from .pin import Pin, pinned
from .row_split_rewrite import split_matmuls
from .sink import Sink


@dataclass(frozen=True, slots=True)
class Assigned:
    """What one weight gets.

    Whole, it is on ``device``. With ``bounds``, which have a range of rows for each device of the program in order, its
    rows are on those devices, and what is not sliced along with it (a bias that others read too) is on ``device``.
    """

    device: Device
    bounds: Bounds = ()
    residency: Residency = Residency.DEVICE


Assignment = Mapping[str, Assigned]
"""What each weight of a program gets, by its name before it is sliced."""


@dataclass(frozen=True)
class Assign(Pass):
    """Places weights as an assignment says that was made before; stands in the place of ``place`` and ``rows``."""

    name: ClassVar[str] = "assign"
    requires: ClassVar[frozenset[str]] = frozenset({"blocks found"})
    ensures: ClassVar[frozenset[str]] = frozenset({"placed"})
    refuses: ClassVar[frozenset[str]] = frozenset({"placed"})

    assignment: Assignment
    headroom: int | None = None

    def run(self, program: Program) -> Change:
        """Checks the assignment, then commits it; raises DoesNotFitError or UsageError, and changes nothing then."""
        check(program, self.assignment, headroom=self.headroom)
        commit(program, self.assignment)
        return Change(len(program.home), "weights placed as assigned")

    def __str__(self) -> str:
        return self.name


def assigned(program: Program, homes: Mapping[str, Device], bounds: Mapping[str, Bounds] | None = None) -> Assignment:
    """An assignment of some homes and bounds, in which every weight is kept where the program says that it is."""
    kept = program.residency
    return {
        name: Assigned(home, (bounds or {}).get(name, ()), kept.get(name, Residency.DEVICE))
        for name, home in homes.items()
    }


def needs_under(program: Program, assignment: Assignment, headroom: int | None = None) -> dict[Device, Need]:
    """What each device needs under an assignment, when nodes are placed by it; changes nothing.

    Where a weight is sliced, or on another device than the main one, it is tried on a copy, with the passes that move
    nodes.
    """
    homes = {name: one.device for name, one in assignment.items()}
    kept = {name: one.residency for name, one in assignment.items() if one.residency is not Residency.DEVICE}
    is_split = any(one.bounds for one in assignment.values())
    if not is_split and kept == program.residency and all(device == program.main for device in homes.values()):
        return needs_of(program, {node: device for node, (device, _) in pinned(program, homes).items()}, headroom)
    copy = program.copy()
    commit(copy, assignment)
    for step in (Pin(),) if is_split else (Pin(), Hoist(), Sink()):
        step.run(copy)
    return needs_of(copy, copy.places(), headroom)


def excess(needs: Mapping[Device, Need], free: Mapping[Device, int]) -> int:
    """By how many bytes the device that is most over has too little."""
    return max((need.total - free[device] for device, need in needs.items() if need.total), default=0)


def check(
    program: Program, assignment: Assignment, free: Mapping[Device, int] | None = None, headroom: int | None = None
) -> None:
    """Accepts an assignment or refuses it; changes nothing.

    Args:
        program: a program whose weights have no place yet.
        assignment: what each of its weights gets.
        free: the bytes that may be used of each device; what the program's rig says, if left out.
        headroom: bytes in place of what is alive on a device.

    Raises:
        UsageError: it leaves a weight out, names another device, or slices what cannot be sliced so.
        DoesNotFitError: a device has less than it needs; the message has both numbers, and what may help.
    """
    _check_form(program, assignment)
    check_needs(program, needs_under(program, assignment, headroom), free)


def check_needs(program: Program, needs: Mapping[Device, Need], free: Mapping[Device, int] | None = None) -> None:
    """Raises DoesNotFitError, with both numbers and what may help, for a device that has less than it needs."""
    free = program.rig.free if free is None else free
    for device, need in needs.items():
        if need.total > free[device]:
            raise DoesNotFitError(_refusal(program, device, need, free[device]))


def commit(program: Program, assignment: Assignment) -> int:
    """Writes an assignment to a program: homes, residency, slices; returns how many split results are gathered."""
    known = {name: assignment[name] for name in program.weights}
    program.home = {name: one.device for name, one in known.items()}
    program.residency = {name: one.residency for name, one in known.items() if one.residency is not Residency.DEVICE}
    bounds = {name: one.bounds for name, one in known.items() if one.bounds}
    program.bounds = bounds
    return split_matmuls(program, bounds) if bounds else 0


def _check_form(program: Program, assignment: Assignment) -> None:
    """Raises UsageError for an assignment that is none of this program."""
    lacking = program.weights.keys() - assignment.keys()
    if lacking:
        raise UsageError(f"the assignment says nothing of {sorted(lacking)[0]}: give every weight a device")
    for name in program.weights:
        one = assignment[name]
        if one.device not in program.devices:
            raise UsageError(
                f"{name} is assigned to {one.device}, and {program.name} is for {', '.join(map(str, program.devices))}"
            )
    marks = {weight.name: node for node, weight in marked_weights(program).items()}
    of_bias: dict[str, Bounds] = {}
    for name, bounds in ((name, assignment[name].bounds) for name in program.weights if assignment[name].bounds):
        if name not in marks:
            raise UsageError(
                f"{name} cannot be split by rows: it is no large matrix of a block that is only multiplied by"
            )
        ends = [0, *(stop for _, stop in bounds)]
        covers = [start for start, _ in bounds] == ends[:-1] and ends == sorted(ends)
        if len(bounds) != len(program.devices) or not covers or ends[-1] != program.weights[name].shape[0]:
            raise UsageError(f"the rows of {name} are to be {bounds}: give each device a range, one after another")
        for bias in (bias_of(user) for user in marks[name].users):
            if bias is not None and of_bias.setdefault(bias.name, bounds) != bounds:
                raise UsageError(f"the bias {bias.name} belongs to matrices of different bounds: give them the same")


def _refusal(program: Program, device: Device, need: Need, free: int) -> str:
    staged = " that are there together" if program.residency else ""
    memory = program.rig[device]
    why = f" ({memory.why})" if memory.why else ""
    return (
        f"{program.name} needs {format_bytes(need.weights)} of weights{staged} and {format_bytes(need.values)} of "
        f"headroom on {device}, which has {format_bytes(free)} free of {format_bytes(memory.total)}{why}: "
        f"{_ways_out(program, device, need)}"
    )


def _ways_out(program: Program, device: Device, need: Need) -> str:
    """What can make it fit, in the order in which it costs least."""
    ways, why = ["list more devices"], program.rig[device].why
    if len(program.devices) > 1:
        ways.append(f"give {device} a smaller share (--tensor-split)")
    if "budget" in why:
        ways.append("raise the budget (--max-vram)")
    if "other components" in why:
        ways.append("let the weights of other components rest elsewhere (--params-backend)")
    ways.append("ask for a smaller size or batch" if need.values > need.weights else "use a smaller dtype")
    return f"{', '.join(ways[:-1])}, or {ways[-1]}"
