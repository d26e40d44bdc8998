"""The components of a pipeline, compiled for the devices that were asked for, without running the model."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ...compiler.errors import UsageError
from ...conventions.hub import INDEX
from ..options.call import Size, call_arguments, told_of_steps
from ..options.shared import Where
from ..options.subject import Pipeline, check_component, dtype_of, find_pipeline, located
from ..options.weights import WeightFiles
from ..output.progress import progress
from .garbage import collect_from_now

if TYPE_CHECKING:
    from ...compiler.ir.program import Program
    from ...components.compiled import CompiledModule
    from ...pipelines.dryrun import DryPipeline
    from ...planning.generation import Generation
    from ...planning.table import Account


class Parts(dict[str, "CompiledModule"]):
    """What was compiled, by name, and of a pipeline what else is known.

    ``pipe`` is the pipeline, whose modules have the buffers that are in no file, and ``account`` the plan of its call.
    """

    pipe: Any = None
    account: Account | None = None


def compiled_parts(
    subject: str,
    component: str,
    where: Where,
    size: Size,
    weights: WeightFiles,
    dtype: str | None = None,
    steps: int | None = 1,
) -> Parts:
    """What plan files hold, or what the components of a pipeline compile to, by name, in the order of their calls.

    Of a pipeline the configs of the components are enough; the type is then the one given, or bfloat16. It is planned
    for a call of so many steps; None is as many as it takes by itself.
    """
    path = Path(subject)
    files = _plans(path) if subject else []
    if files:
        if weights.are_named:
            raise UsageError(f"{path} is a plan, which has no weights: leave out --weights")
        return _of_plans(files, component)
    if path.suffix == ".json" and not path.exists():
        raise UsageError(f"there is no plan {path}: dovetail compile --component NAME -o {path} writes one")
    pipeline = find_pipeline(subject)
    wanted = check_component(pipeline, component)
    where.check(pipeline.components)
    with progress("tracing the components"):
        return _plan(pipeline, wanted, where, size, weights, dtype, steps)


def _plans(path: Path) -> list[Path]:
    """The plan file that was named, or those of a folder that `dovetail compile -o` wrote."""
    if path.is_file():
        return [path]
    return [] if any((path / name).exists() for name in (INDEX, "config.json")) else sorted(path.glob("*.json"))


def _of_plans(files: list[Path], component: str) -> Parts:
    from ... import load
    from ...compiler.text.plan_file import component_in

    if component:
        raise UsageError(f"{files[0]} is a plan of one component: leave out --component {component}")
    return Parts({component_in(file): load(file) for file in files})


def read_plans(place: str) -> dict[str, Program]:
    """The programs of a plan file or of a folder of them, by name; raises UsageError where there is none."""
    files = _plans(Path(place))
    if not files:
        raise UsageError(f"there is no plan in {place}: dovetail compile MODEL_FOLDER -o FOLDER writes some")
    return {name: part.program for name, part in _of_plans(files, "").items()}


def planned(
    pipeline: Pipeline,
    where: Where,
    weights: WeightFiles,
    given: Mapping[str, Any],
    *,
    dtype: str | None = None,
    variant: str | None = None,
    adapters: Mapping[str, Any] | None = None,
    pipeline_class: Any = None,
    components: Callable[[Any], dict[str, Any]] | None = None,
    scheduler: str = "",
) -> tuple[DryPipeline, Generation | None]:
    """A pipeline that was run dry, from its configs alone if need be, and the plan of a call with these arguments."""
    from ...conventions.schedulers import exchanged
    from ...pipelines.dryrun import DryPipeline
    from ...pipelines.loading.saved import open_pipeline

    pipeline = located(pipeline, variant)
    dtype_there = dtype_of(pipeline, dtype, variant)
    pipe, origins = open_pipeline(
        pipeline.place,
        dtype=dtype_there,
        variant=variant,
        pipeline_class=pipeline_class,
        components=components(dtype_there) if components else None,
        weights=weights.given(pipeline),
        needs_files=False,
    )
    if scheduler:
        pipe.scheduler = exchanged(pipe.scheduler, scheduler)
    collect_from_now()
    dry = DryPipeline(
        pipe,
        where.arguments,
        passes=where.passes or None,
        origins=origins,
        vae_tiling=where.vae_tiling,
        **(adapters or {}),
    )
    return dry, dry(**call_arguments(pipe, given, pipeline.defaults), **told_of_steps(pipe))  # as it is painted


def _plan(
    pipeline: Pipeline,
    wanted: str,
    where: Where,
    size: Size,
    weights: WeightFiles,
    dtype: str | None,
    steps: int | None,
) -> Parts:
    given = {"prompt": "a picture", **({"num_inference_steps": steps} if steps else {}), **size.arguments()}
    dry, generation = planned(pipeline, where, weights, given, dtype=dtype)
    plans = dry.plans()
    chosen = {name: plan for name, plan in plans.items() if not wanted or name.partition(".")[0] == wanted}
    if not chosen:
        raise UsageError(f"{pipeline.place} calls {wanted or 'nothing'} in no picture: there is nothing to compile")
    parts = Parts(chosen)
    parts.pipe = dry.pipe
    parts.account = dry.account(generation) if generation is not None else None
    return parts
