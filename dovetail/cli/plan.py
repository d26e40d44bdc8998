"""`dovetail plan`: where a pipeline would run and rest, on this machine or on one that is not here."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from ..compiler.errors import UsageError
from .call import PICTURE, Size, call_arguments
from .options import Debug, Dtype, Json, Where
from .output import print_json, print_table, progress
from .subject import Pipeline, Subject, dtype_of, find_pipeline, located
from .weight_options import WeightFiles

if TYPE_CHECKING:
    from ..compiler.spec.devices import Device
    from ..fitting.decide import Decision


def plan(
    where: Where,
    size: Size,
    weights: WeightFiles,
    subject: Subject = "",
    steps: Annotated[int | None, typer.Option(min=1, help="Denoising steps.", rich_help_panel=PICTURE)] = None,
    dtype: Dtype = None,
    json: Json = False,
    debug: Debug = False,
) -> None:
    """Say where a pipeline's components run and rest: least predicted time within every budget.

    Nothing is computed and no weight is read. What is said by --backend, --params-backend and the like is kept to; the
    rest is searched. The last line has the options that ask for the same.
    """
    pipeline = find_pipeline(subject)
    if pipeline.only:
        raise UsageError(f"{subject} is one component: name the folder of its pipeline, {pipeline.place}")
    where.check(pipeline.components)
    with progress("tracing the components"):
        found, total = _searched(pipeline, where, size, weights, dtype, steps)
    plan = found.explained()
    from ..fitting.table import HEAD, RIGHT, device_rows, facts, rows_of, seconds_text

    if json:
        print_json(facts(plan, found.searched))
        return
    print_table(HEAD, rows_of(plan), RIGHT)
    print()
    print_table(("device", "peak", "in", "may use", "has"), device_rows(plan, total), right=(1, 3, 4))
    print()
    took = seconds_text(plan.seconds)
    print(f"a picture takes {took} s, without reading files; the search took {found.searched:.2f} s")
    for note in plan.notes:
        print(note)
    print(plan.line)


def _searched(
    pipeline: Pipeline, where: Where, size: Size, weights: WeightFiles, dtype: str | None, steps: int | None
) -> tuple[Decision, dict[Device, int]]:
    """The plan, and the memory of each device."""
    from ..pipelines.dryrun import SearchedPipeline
    from ..pipelines.loading import open_pipeline

    pipeline = located(pipeline)
    pipe, origins = open_pipeline(
        pipeline.place, dtype=dtype_of(pipeline, dtype), weights=weights.given(pipeline), needs_files=False
    )
    pipe.set_progress_bar_config(disable=True)
    given = {"prompt": "a picture", **({"num_inference_steps": steps} if steps else {}), **size.arguments()}
    dry = SearchedPipeline(pipe, where.arguments, passes=where.passes or None, chunk=where.chunk, origins=origins)
    dry(**call_arguments(pipe, given, pipeline.defaults))
    if dry.decision is None:
        raise UsageError(f"{pipeline.place} cannot be planned: its calls cannot be foreseen; see --debug")
    return dry.decision, {device: dry.rig[device].total for device in dry.decision.plan.peak}
