"""Makes programs whose calls take turns: one a device, or a group of them, each of which has the component whole."""

from __future__ import annotations

import logging
from collections.abc import Sequence

from torch import nn

from ..compiler.devices.device import Device
from ..compiler.devices.rig import Rig
from ..compiler.errors import DoesNotFitError
from ..compiler.ir.program import Program, tensors_of
from ..compiler.spec.modes import inner_mode, shares_out_pictures
from ..components.alternating import Alternating
from ..components.compiled import CompiledModule
from ..components.decisions import Decisions
from ..components.dry import DryRun
from ..components.plan import ComponentPlan
from ..passes.infra.base import Pass
from ..passes.infra.manager import PassManager
from ..passes.pipeline import default_passes
from ..passes.states.mesh import stretches, turn_count
from ..passes.states.modes import picture_count
from ..passes.states.states import beside_others
from .lowerings import Lowerings

logger = logging.getLogger(__name__)


def may_alternate(decided: Decisions, traced: Program) -> bool:
    """Whether calls of a program are to take turns: they do in the pipeline, and are of one picture each."""
    results = traced.output.all_input_nodes
    is_of_tensors = all(len(tensors_of(node)) == 1 for node in results)
    stays = not traced.residency and not traced.symbols
    is_asked = decided.plan.takes_turns and len(groups_in_turn(decided.plan, decided.parts)) > 1
    return is_asked and stays and is_of_tensors and picture_count(traced) < 2


def groups_in_turn(plan: ComponentPlan, parts: int) -> list[tuple[Device, ...]]:
    """The devices on which so many independent calls take turns: one by one, or in groups that compute one together.

    As many groups as can have two devices or more each, and equally many: see `turn_count`.
    """
    devices = plan.devices
    if inner_mode(plan.mode):
        return [devices[one] for one in stretches(len(devices), turn_count(len(devices), parts))]
    return [(one,) for one in devices[:parts]]


def steps_in_turn(plan: ComponentPlan) -> tuple[Pass, ...]:
    """The passes that lower a program for one of them."""
    return default_passes(split_mode=inner_mode(plan.mode) or "layer", chunk=plan.chunks, terms=plan.terms)


def takes_turns(decided: Decisions, run: DryRun) -> bool:
    """Whether calls of a component may take turns in a call of the pipeline that was made dry."""
    several = len(decided.devices) > 1 and run.parts_of(decided.component) > 1
    return decided.plan.takes_turns and several and decided.parts > 0


def kept_apart(decided: Decisions, run: DryRun, programs: Sequence[CompiledModule]) -> str:
    """Why calls of a component run one after another that could go on at the same time, in words; else nothing."""
    plan, several = decided.plan, len(decided.devices) > 1 and run.parts_of(decided.component) > 1
    is_split = any(isinstance(one, Alternating) or one.program.is_grouped for one in programs)
    if not shares_out_pictures(plan.mode) or not several or is_split:
        return ""
    return plan.kept_apart or "not each device has room for all of it, or passes or a plan place it otherwise"


def lowered_whole(
    traced: Program, groups: Sequence[tuple[Device, ...]], steps: Sequence[Pass], lowerings: Lowerings
) -> list[Program] | None:
    """A trace lowered for each group of devices alone; None where one has no room for it, which is said.

    The inputs are there: a call that is launched has copies of its own.
    """
    try:
        return [_lowered_on(traced, devices, steps, lowerings) for devices in groups]
    except DoesNotFitError as error:
        logger.warning(
            "%s is placed by layers, and its calls do not take turns: each %s would hold it whole: %s",
            traced.name, "device" if len(groups[0]) == 1 else "group of devices", str(error),
        )  # fmt: skip
    return None


def _lowered_on(traced: Program, devices: Sequence[Device], steps: Sequence[Pass], lowerings: Lowerings) -> Program:
    rig, home, given = traced.rig, traced.home, traced.given
    try:
        traced.rig = rig.only(devices)
        traced.home = {name: there for name, there in home.items() if there in devices}
        traced.given = frozenset(range(len(traced.signature.tensors)))
        with beside_others():
            return lowerings.of(traced, (tuple(steps), "alone"), lambda program: PassManager(steps).run(program))
    finally:
        traced.rig, traced.home, traced.given = rig, home, given


def alternating(
    decided: Decisions, traced: Program, module: nn.Module, programs: Sequence[Program], rig: Rig
) -> Alternating:
    """The program of a call over these of each device, whose weights are counted on all of them."""
    first, *others = programs
    decided.assigned.note(module, first, planning=True)
    for one in others:
        decided.assigned.note_copies(module, one)
    view = decided.component.view
    return Alternating(
        [CompiledModule(one, rig, view.of_program(module, one), traced) for one in programs], rig, traced
    )
