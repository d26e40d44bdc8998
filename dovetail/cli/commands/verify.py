"""`dovetail verify`: whether a placement keeps every rule."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from ..opening.parts import wanted
from ..options.call import Sample
from ..options.shared import Debug, Dtype, Json, Where
from ..options.source import Source
from ..options.subject import Component, Subject
from ..options.weights import WeightFiles
from ..output.results import print_json, print_table

if TYPE_CHECKING:
    from ...compiler.ir.program import Program

Deep = Annotated[bool, typer.Option("--deep", help="Also run it at full size without data: shapes, dtypes, devices.")]


def verify(
    where: Where,
    sample: Sample,
    weights: WeightFiles,
    source: Source,
    subject: Subject = "",
    component: Component = "",
    dtype: Dtype = None,
    deep: Deep = False,
    json: Json = False,
    debug: Debug = False,
) -> None:
    """Check the plans of a pipeline, of one component, or of a plan file against the rules.

    The first rule that is broken is named, with the lines around the place, and the exit code is 4; it is 3 where a
    device has less memory than a plan takes.
    """
    parts = wanted(subject, component, where, sample, weights, source, dtype).parts(in_one_step=True)
    from ...passes.verify.verifier import RULES
    from ...passes.verify.verifier import verify as check
    from ...plans.budgets import too_small_budgets

    for name, part in parts.items():
        check(part.program)
        for error in too_small_budgets(name, part.program, part.rig):
            raise error
    checked = {name: _rehearse(part.program) for name, part in parts.items()} if deep else {}
    if json:
        print_json({"rules": RULES, "kept_by": list(parts), "rehearsed": checked})
        return
    rows = [(name, str(len(list(part.program.ops()))), str(len(part.schedule)), "kept") for name, part in parts.items()]
    print_table(("component", "operations", "instructions", f"{len(RULES)} rules"), rows, right=(1, 2))
    if deep:
        print(f"{sum(checked.values())} operations were run without data: all yield what the plans say")


def _rehearse(program: Program) -> int:
    """Runs a program without data, each of its devices played by a simulated one."""
    import torch

    from ...passes.verify.deep import verify_deep
    from ...runtime import sim

    sim.enable({index: memory.total for index, memory in enumerate(program.rig.memory.values())})
    return verify_deep(program, {device: torch.device("sim", index) for index, device in enumerate(program.devices)})
