"""`dovetail generate`: a picture from a prompt."""

from __future__ import annotations

import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ..compiler.errors import DovetailError, NotHereError
from . import collect_from_now
from .call import PICTURE, Size, call_arguments
from .lora_options import Loras
from .options import Debug, Dtype, Json, Where
from .output import check_writable, print_json, print_table, progress
from .parts import planned
from .subject import Pipeline, dtype_of, find_pipeline, located
from .weight_options import WeightFiles

if TYPE_CHECKING:
    from ..planning.generation import Generation


def generate(
    where: Where,
    size: Size,
    weights: WeightFiles,
    loras: Loras,
    prompt: Annotated[str, typer.Argument(metavar="PROMPT", help="What to paint.")],
    model: Annotated[str, typer.Option(metavar="FOLDER", help="A pipeline's folder or hub id; else the demo.")] = "",
    output: Annotated[Path, typer.Option("-o", "--output", metavar="FILE", help="Where the picture goes.")] = Path(
        "out.png"
    ),
    steps: Annotated[int | None, typer.Option(min=1, help="Denoising steps.", rich_help_panel=PICTURE)] = None,
    seed: Annotated[int, typer.Option(help="The same seed paints the same picture.", rich_help_panel=PICTURE)] = 0,
    negative_prompt: Annotated[
        str | None, typer.Option(metavar="TEXT", help="What not to paint.", rich_help_panel=PICTURE)
    ] = None,
    guidance: Annotated[
        float | None, typer.Option(help="How closely to follow the prompt.", rich_help_panel=PICTURE)
    ] = None,
    dtype: Dtype = None,
    variant: Annotated[
        str | None, typer.Option(metavar="NAME", help="Which files of the model's weights, such as fp16.")
    ] = None,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Print what would run where, and how full devices get; read no weight.")
    ] = False,
    plans: Annotated[
        Path | None, typer.Option(metavar="FOLDER", help="Run by the plans that `dovetail compile -o FOLDER` wrote.")
    ] = None,
    json: Json = False,
    debug: Debug = False,
) -> None:
    """Paint a picture over one device or several."""
    from .picture import check_suffix, save

    check_writable(output)
    check_suffix(output)
    pipeline = find_pipeline(model)
    prompt, adapters = loras.arguments(prompt, pipeline)
    given = {"num_inference_steps": steps, "negative_prompt": negative_prompt, "guidance": guidance}
    given = {"prompt": prompt, **{k: v for k, v in given.items() if v is not None}, **size.arguments()}
    if dry_run:
        where.check(pipeline.components)
        with progress("planning"):
            _, plan = planned(pipeline, where, weights, given, dtype=dtype, variant=variant, adapters=adapters)
        _print_plan(plan, json)
        return
    _check_rig(where, pipeline)
    with progress("loading the pipeline"):
        pipe = _load(pipeline, where, weights, dtype, variant, {**adapters, "plans": plans})
    collect_from_now()
    arguments = call_arguments(pipe, given, pipeline.defaults)
    started = time.perf_counter()
    result = _paint(pipe, arguments, seed)
    seconds = time.perf_counter() - started
    files = save(result, output)
    if json:
        print_json({"files": list(map(str, files)), "seed": seed, "seconds": round(seconds, 3), "call": arguments})
    else:
        print(*files, sep="\n")


def _print_plan(plan: Generation | None, json: bool) -> None:
    from ..planning import table

    if plan is None:
        raise DovetailError("this call cannot be planned: nothing of it could be traced")
    if json:
        print_json(table.document(plan))
        return
    print_table(table.HEAD, table.rows(plan), table.RIGHT)
    print()
    print_table(table.HEAD_OF_DEVICES, table.rows_of_devices(plan), table.RIGHT_OF_DEVICES)


def _check_rig(where: Where, pipeline: Pipeline) -> None:
    rig = where.check(pipeline.components).rig
    if not rig.present:
        raise NotHereError(
            f"nothing can run on {rig}: it is not this machine; plan for it with compile, show or verify"
        )


def _load(
    pipeline: Pipeline,
    where: Where,
    weights: WeightFiles,
    dtype: str | None,
    variant: str | None,
    adapters: dict[str, Any],
) -> Any:
    from .. import load_pipeline
    from ..weights.ahead import read_ahead

    if Path(pipeline.place).is_dir():
        read_ahead(pipeline.place, variant, set(weights.given(pipeline) or {}))  # while diffusers is imported
    pipeline = located(pipeline, variant)
    handle = load_pipeline(
        pipeline.place,
        **where.arguments,
        **adapters,
        weights=weights.given(pipeline),
        passes=where.passes or None,
        vae_tiling=where.vae_tiling,
        dtype=dtype_of(pipeline, dtype, variant),
        variant=variant,
    )
    handle.pipe.set_progress_bar_config(disable=True)
    return handle.pipe


def _paint(pipe: Any, arguments: dict[str, Any], seed: int) -> Any:
    """Calls the pipeline, with a progress bar that moves a step at a time where the pipeline tells of its steps."""
    import inspect

    import torch

    generator = torch.Generator("cpu").manual_seed(seed)
    parameters = inspect.signature(type(pipe).__call__).parameters
    total = arguments.get("num_inference_steps") or getattr(parameters.get("num_inference_steps"), "default", None)
    with progress("painting", total=total if isinstance(total, int) else None) as bar:

        def tick(_pipe: Any, _step: int, _time: Any, state: dict[str, Any]) -> dict[str, Any]:
            bar.advance(bar.task_ids[0])
            return state

        told = {"callback_on_step_end": tick} if "callback_on_step_end" in parameters else {}
        return pipe(**arguments, **told, generator=generator)
