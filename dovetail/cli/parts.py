"""The components of a pipeline, compiled for the devices that were asked for, without running the model."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..compiler.errors import UsageError
from .call import Size, call_arguments
from .options import Where
from .output import progress
from .subject import Pipeline, check_component, find_pipeline, quiet_libraries

if TYPE_CHECKING:
    from ..compiled import CompiledModule


def compiled_parts(subject: str, component: str, where: Where, size: Size) -> dict[str, CompiledModule]:
    """What a plan file holds, or what the components of a pipeline compile to, by name, in the order of their calls."""
    path = Path(subject)
    if subject and path.is_file():
        return _of_plan(path, component)
    pipeline = find_pipeline(subject)
    wanted = check_component(pipeline, component)
    where.check(pipeline.components)
    with progress("tracing the components"):
        return _compile(pipeline, wanted, where, size)


def _of_plan(path: Path, component: str) -> dict[str, CompiledModule]:
    from .. import load

    if component:
        raise UsageError(f"{path} is a plan of one component: leave out --component {component}")
    compiled = load(path)
    return {compiled.program.name: compiled}


def _compile(pipeline: Pipeline, wanted: str, where: Where, size: Size) -> dict[str, CompiledModule]:
    from ..dryrun import compile_calls, dry_run

    quiet_libraries()
    pipe = open_pipeline(pipeline)
    given = {"prompt": "a picture", "num_inference_steps": 1, **size.arguments()}
    calls = dry_run(pipe, **call_arguments(pipe, given, pipeline.defaults))
    if wanted:
        calls = {name: call for name, call in calls.items() if call.attribute == wanted}
    if not calls:
        raise UsageError(f"the pipeline never calls its component {wanted!r}: there is nothing to compile")
    return compile_calls(calls, where.check(pipeline.components), where.passes or None)


def open_pipeline(pipeline: Pipeline) -> Any:
    """The pipeline as diffusers loads it, on the CPU."""
    import torch
    from diffusers import DiffusionPipeline

    dtype = getattr(torch, pipeline.dtype) if pipeline.dtype else None
    try:
        pipe = DiffusionPipeline.from_pretrained(pipeline.place, **({"dtype": dtype} if dtype else {}))
    except (OSError, ValueError, json.JSONDecodeError) as error:
        raise UsageError(f"cannot load {pipeline.place}: {error}") from error
    pipe.set_progress_bar_config(disable=True)
    return pipe
