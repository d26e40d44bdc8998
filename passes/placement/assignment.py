"""An assignment: which device, or which rows on which devices, each weight gets, and where it is kept.

A policy (a layer split, a row split, a device map) makes one and changes nothing. ``check`` accepts or refuses it, with
both numbers. ``commit`` writes it to the program. So a program that is refused is as it was, and one traced program can
be lowered under many assignments, each on a copy.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import ClassVar

from torch.fx import Node

from ...compiler.devices.device import Device
from ...compiler.devices.rig import Rig
from ...compiler.errors import DoesNotFitError, UsageError
from ...compiler.ir.eligibility import bias_of, marked_weights
from ...compiler.ir.program import IN_PARTS, Program
from ...compiler.ir.slices import Bounds, cover
from ...compiler.ir.weight import Weight
from ...compiler.spec.residency import Residency
from ...compiler.states.parts import held_on
from ...compiler.units import format_bytes
from ..analysis.memory_needs import Need, needs_of
from ..batches.interleave import Interleave
from ..infra.base import Change, Pass
from ..rewrites.reorder import Reorder
from ..rewrites.reuse import Reuse
from .cut import Cut
from .hoist import Hoist
from .pin import Pin
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
    whole = assigned_whole(homes, program.residency)
    return {**whole, **{name: replace(whole[name], bounds=some) for name, some in (bounds or {}).items()}}


def assigned_whole(homes: Mapping[str, Device], residency: Mapping[str, Residency]) -> Assignment:
    """An assignment of some homes, in which weights are kept on their devices where nothing else is said."""
    return {name: Assigned(home, (), residency.get(name, Residency.DEVICE)) for name, home in homes.items()}


def needs_under(
    program: Program, assignment: Assignment, headroom: int | None = None, *, finest: bool = False
) -> dict[Device, Need]:
    """What each device needs under an assignment; changes nothing.

    It is tried on a copy, with the passes that move nodes and those that let results share memory. Weights that come
    and go do so by block, or by less where a device has no room for that; with stages that are the ``finest``, it is
    the least that is accepted.
    """
    trial = program.copy()
    commit(trial, assignment)
    _arrange(trial)
    return with_others(trial, assignment, needs_of(trial, trial.places(), headroom, finest=finest))


def arranged(program: Program) -> Program:
    """A copy of a program whose weights have their places, with nodes placed and memory shared as they will be."""
    copy = program.copy()
    _arrange(copy)
    return copy


def _arrange(copy: Program) -> None:
    moving = () if copy.is_grouped or len(copy.devices) == 1 else (Hoist(), Sink())
    in_turn = (Interleave(),) if IN_PARTS in copy.facts else ()
    for step in (Pin(), *moving, *in_turn, Cut(), Reuse(), Reorder()):
        step.run(copy)


def with_others(program: Program, assignment: Assignment, needs: Mapping[Device, Need]) -> dict[Device, Need]:
    """The needs when what other programs have alive at other times must have room beside the weights that stay."""
    beside = {device: memory.beside for device, memory in program.rig.memory.items() if memory.beside}
    if not beside:
        return dict(needs)
    stays: Counter[Device] = Counter()
    for weight, devices in held_on(program):
        kept = assignment[weight.whole].residency if weight.whole in assignment else Residency.DEVICE
        stays.update({one: weight.nbytes for one in devices if not kept.stages_on(one)})
    return {
        device: replace(need, stays=stays[device], others=beside[device])
        if device in beside and stays[device]
        else need
        for device, need in needs.items()
    }


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


def check_weights(name: str, weights: Mapping[str, Weight], assignment: Assignment, rig: Rig) -> None:
    """Accepts an assignment of weights of which no graph is known, or refuses it as `check` does; changes nothing.

    Weights that stay are counted where they are assigned, as if all were there together; of those that come and go the
    largest, and no values.
    """
    _check_devices(name, weights, assignment, rig)
    load: Counter[Device] = Counter()
    largest: dict[Device, int] = {}
    for key, weight in weights.items():
        one = assignment[key]
        if one.residency.stages_on(one.device):
            largest[one.device] = max(largest.get(one.device, 0), weight.nbytes)
        else:
            load[one.device] += weight.nbytes
    load.update(largest)
    _check_room(name, rig, {device: Need(nbytes) for device, nbytes in load.items()}, rig.free)


def check_needs(program: Program, needs: Mapping[Device, Need], free: Mapping[Device, int] | None = None) -> None:
    """Raises DoesNotFitError, with both numbers and what may help, for a device that has less than it needs."""
    _check_room(program.name, program.rig, needs, program.rig.free if free is None else free, bool(program.residency))


def commit(program: Program, assignment: Assignment) -> int:
    """Writes an assignment to a program: homes, residency, slices; returns how many split results are gathered."""
    known = {name: assignment[name] for name in program.weights}
    program.home = {name: one.device for name, one in known.items()}
    program.residency = {name: one.residency for name, one in known.items() if one.residency is not Residency.DEVICE}
    program.bounds = {name: one.bounds for name, one in known.items() if one.bounds}
    return split_matmuls(program, program.bounds) if program.bounds else 0


def _check_devices(name: str, weights: Iterable[str], assignment: Assignment, rig: Rig) -> None:
    """Raises UsageError where an assignment leaves a weight out, or names a device that is not of the rig."""
    for weight in sorted(weights):
        if weight not in assignment:
            raise UsageError(f"the assignment says nothing of {weight}: give every weight a device")
        device = assignment[weight].device
        if device not in rig.devices:
            raise UsageError(f"{weight} is assigned to {device}, and {name} is for {', '.join(map(str, rig))}")


def _check_form(program: Program, assignment: Assignment) -> None:
    """Raises UsageError for an assignment that is none of this program."""
    _check_devices(program.name, program.weights, assignment, program.rig)
    marks = {weight.name: node for node, weight in marked_weights(program).items()}
    of_bias: dict[str, Bounds] = {}
    for name, bounds in ((name, assignment[name].bounds) for name in program.weights if assignment[name].bounds):
        if name not in marks:
            raise UsageError(
                f"{name} cannot be split by rows: it is no large matrix of a block that is only multiplied by"
            )
        if len(bounds) != len(program.devices) or not cover(bounds, program.weights[name].shape[0]):
            raise UsageError(f"the rows of {name} are to be {bounds}: give each device a range, one after another")
        for bias in (bias_of(user) for user in marks[name].users):
            if bias is not None and of_bias.setdefault(bias.name, bounds) != bounds:
                raise UsageError(f"the bias {bias.name} belongs to matrices of different bounds: give them the same")


def _check_room(
    name: str, rig: Rig, needs: Mapping[Device, Need], free: Mapping[Device, int], is_staged: bool = False
) -> None:
    for device, need in needs.items():
        if need.total <= free[device]:
            continue
        memory = rig[device]
        why = f" ({memory.why})" if memory.why else ""
        there = f"on {device}, which has {format_bytes(free[device])} free of {format_bytes(memory.total)}{why}"
        raise DoesNotFitError(
            _problem(name, need, is_staged, there),
            {device: need.total - free[device]},
            _ways_out(rig, device, need),
            own=not need.is_for_others,
        )


def _problem(name: str, need: Need, is_staged: bool, there: str) -> str:
    """What a program needs of a device, in words: at its own fullest moment, or so that others have room at theirs."""
    if need.is_for_others:
        return (
            f"{name} needs {format_bytes(need.total)}: {format_bytes(need.stays)} of weights that stay there, beside "
            f"which other components take {format_bytes(need.others)} at other times, {there}"
        )
    weights = f"{format_bytes(need.weights)} of weights"
    values = f" and {format_bytes(need.values)} of headroom" if need.values else ""
    if not is_staged:
        return f"{name} needs {weights}{values} {there}"
    together = f"{weights} that are there together{_at(need.reader)}"
    at = _at(need.node) if values else ""
    return f"{name} needs at least {format_bytes(need.total)} {there}: {together}{values}{at}"


def _at(node: Node | None) -> str:
    """Which operation it is that needs so much."""
    return f" (%{node.name})" if node is not None else ""


def _ways_out(rig: Rig, device: Device, need: Need) -> str:
    """What can make it fit, in the order in which it costs least."""
    ways, why = ["list more devices"], rig[device].why
    if len(rig.devices) > 1:
        ways.append(f"give {device} a smaller share (--tensor-split)")
    if "budget" in why:
        ways.append("raise the budget (max_vram, --max-vram)")
    if "other components" in why or need.is_for_others:
        ways.append("let the weights of other components rest elsewhere (--params-backend)")
    ways.append("ask for a smaller size or batch" if need.values > need.weights else "use a smaller dtype")
    return f"{', '.join(ways[:-1])}, or {ways[-1]}"
