"""`dovetail generate`: a picture from a prompt."""

from __future__ import annotations

import inspect
import shlex
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Annotated, Any

import typer

from ..compiler.errors import NotHereError, UsageError
from ..progress.phases import Phases, begin
from ..recovery.latents import Latents, beside, read_latents, save_latents
from . import collect_from_now
from .call import Size, call_arguments, own_checks, told_of_steps
from .figures import document_of, line_of, peaks_of
from .inputs import Inputs
from .lora_options import Loras
from .options import Debug, Dtype, Json, Where
from .output import check_writable, print_json
from .painting import Painting, class_of
from .plan import accounted, print_account
from .profile import profiled
from .progress import progress, tell
from .subject import Pipeline, dtype_of, find_pipeline, located
from .weight_options import WeightFiles


def generate(
    where: Where,
    size: Size,
    painting: Painting,
    inputs: Inputs,
    weights: WeightFiles,
    loras: Loras,
    prompt: Annotated[str, typer.Argument(metavar="PROMPT", help="What to paint.")] = "",
    model: Annotated[
        str, typer.Option("-m", "--model", metavar="FOLDER", help="A pipeline's folder or hub id; else the demo.")
    ] = "",
    output: Annotated[
        Path, typer.Option("-o", "--output", metavar="FILE", help="Where it goes: .png, .jpg, .webp, .gif, .mp4.")
    ] = Path("out.png"),
    dtype: Dtype = None,
    variant: Annotated[
        str | None, typer.Option(metavar="NAME", help="Which files of the model's weights, such as fp16.")
    ] = None,
    latents: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Decode what an earlier call left or saved.")
    ] = None,
    latents_to: Annotated[
        Path | None, typer.Option("--save-latents", metavar="FILE", help="Write what is decoded to a file as well.")
    ] = None,
    profile: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="Write predicted and measured times for Perfetto."),
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
    from ..conventions.prompts import told_of_cut
    from ..demo.words import told_of_unknown
    from .picture import check_suffix, numbered, other_size

    check_writable(output)
    if profile is not None:
        check_writable(profile)
    check_suffix(output)
    inputs.check()
    if latents_to is not None:
        check_writable(latents_to)
    pipeline = find_pipeline(model)
    prompt, adapters = loras.arguments(painting.prompt(prompt), pipeline)
    given = {"prompt": prompt, **painting.arguments(), **size.arguments()}
    saved, seed = _saved(latents, given, painting.seed)
    if saved and painting.count > 1:
        raise UsageError(f"{latents} has one picture's latents: leave out --num-images {painting.count}")
    cls = class_of(pipeline, inputs, given)
    given |= inputs.arguments(cls, given)
    painting.use_threads()
    options = {**adapters, "plans": plans}
    other = {"pipeline_class": cls, "components": inputs.components, "scheduler": painting.scheduler}
    if dry_run:
        where.check(pipeline.components)
        with progress("planning"):
            account = accounted(
                pipeline, where, weights, given, dtype=dtype, variant=variant, adapters=options, **other
            )
        print_account(account, json)
        return
    _check_rig(where, pipeline)
    phases = Phases((lambda name: tell("phase", phase=name)) if json else lambda _: None)
    with progress("loading the pipeline", as_events=json), phases.watching():
        begin("loading")
        pipe = _load(pipeline, where, weights, dtype, variant, options, **other)
    collect_from_now()
    pipe.dovetail.keeps_latents = latents_to is not None
    arguments = call_arguments(pipe, given, pipeline.defaults)
    if saved and saved.pipeline != type(pipe).__name__:
        raise UsageError(f"{latents} is of a {saved.pipeline}, not of {type(pipe).__name__}: name its --model")
    _warn(told_of_unknown(prompt) if not model else "", told_of_cut(pipe, arguments))
    files: list[Path] = []
    seeds = painting.seeds(seed)
    with profiled(profile, pipe):
        for index, one in enumerate(seeds):
            result = _paint(pipe, arguments, one, phases, saved, output, model, json)
            if latents_to is not None:
                file = numbered(latents_to, index) if len(seeds) > 1 else latents_to
                save_latents(file, _latents(pipe, arguments, one))
            files += _write(result, numbered(output, index) if len(seeds) > 1 else output, painting.fps, phases, json)
    _warn(other_size(result, arguments.get("width"), arguments.get("height")))
    peaks = peaks_of(pipe.dovetail)
    if json:
        told = {"files": list(map(str, files)), "seed": seeds[0], "seconds": round(sum(phases.seconds.values()), 3)}
        print_json({**told, **document_of(phases, peaks), "call": _told(arguments)})
    else:
        print(line_of(phases, peaks), file=sys.stderr)


def _warn(*texts: str) -> None:
    for text in filter(None, texts):
        print(f"warning: {text}", file=sys.stderr)


def _saved(file: Path | None, given: dict[str, Any], seed: int) -> tuple[Latents | None, int]:
    """The latents of a file, whose call takes the place of what was not typed; and the seed of that call."""
    if file is None:
        if not given["prompt"]:
            raise UsageError("generate needs a prompt: what to paint, or --latents FILE to go on from")
        return None, seed
    saved = read_latents(file)
    before = dict(saved.call)
    seed = int(before.pop("seed", seed))
    given.update({name: value for name, value in before.items() if not given.get(name)})
    return saved, seed


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
    *,
    pipeline_class: Any,
    components: Callable[[Any], dict[str, Any]],
    scheduler: str,
) -> Any:
    from .. import load_pipeline
    from ..conventions.schedulers import exchanged
    from ..weights.ahead import read_ahead

    if Path(pipeline.place).is_dir():
        read_ahead(pipeline.place, variant, set(weights.given(pipeline) or {}))  # while diffusers is imported
    pipeline = located(pipeline, variant)
    dtype_there = dtype_of(pipeline, dtype, variant)
    pipe = load_pipeline(
        pipeline.place,
        **where.arguments,
        **adapters,
        weights=weights.given(pipeline),
        passes=where.passes or None,
        vae_tiling=where.vae_tiling,
        dtype=dtype_there,
        variant=variant,
        pipeline_class=pipeline_class,
        components=components(dtype_there),
    )
    if scheduler:
        pipe.scheduler = exchanged(pipe.scheduler, scheduler)
    pipe.set_progress_bar_config(disable=True)
    pipe.dovetail.rest_in_files()
    return pipe


def _paint(
    pipe: Any,
    arguments: dict[str, Any],
    seed: int,
    phases: Phases,
    saved: Latents | None,
    output: Path,
    model: str,
    json: bool,
) -> Any:
    """Calls the pipeline, or goes on from latents; a bar says which phase is going on, and moves a step at a time.

    Where decoding fails, what was to be decoded is written beside the picture's file.
    """
    import torch

    generator = torch.Generator("cpu").manual_seed(seed)
    parameters = inspect.signature(type(pipe).__call__).parameters
    total = arguments.get("num_inference_steps") or getattr(parameters.get("num_inference_steps"), "default", None)
    steps = total if isinstance(total, int) else None
    with own_checks(), progress("planning", steps, phases.describe, as_events=json) as advance:
        told = told_of_steps(pipe, advance)
        try:
            with phases.watching():
                if saved is not None:
                    return pipe.dovetail.go_on(saved.tensors, **arguments, generator=generator)
                return pipe(**arguments, **told, generator=generator)
        except BaseException:
            if pipe.dovetail.latents:
                _keep(_latents(pipe, arguments, seed), output, model)
            raise


def _latents(pipe: Any, arguments: Mapping[str, Any], seed: int) -> Latents:
    """What was to be decoded in the last call, with that call."""
    return Latents(pipe.dovetail.latents, type(pipe).__name__, {**arguments, "seed": seed})


def _write(result: Any, output: Path, fps: int, phases: Phases, json: bool) -> list[Path]:
    """Writes a picture or a video, and says where, unless that is to be said as JSON."""
    from .picture import save

    with phases.watching():
        begin("writing")
        files = save(result, output, fps)
    if not json:
        print(*files, sep="\n", flush=True)
    return files


def _told(arguments: Mapping[str, Any]) -> dict[str, Any]:
    """The arguments of a call as JSON takes them: of a picture its size."""
    return {
        name: f"a picture of {value.width}x{value.height}" if hasattr(value, "resize") else value
        for name, value in arguments.items()
    }


def _keep(latents: Latents, output: Path, model: str) -> None:
    """Writes latents beside the picture that they were to become, and says what goes on from there."""
    try:
        file = save_latents(beside(output), latents)
    except OSError as error:
        print(f"what was to be decoded cannot be kept beside {output}: {error.strerror}", file=sys.stderr)
        return
    words = ["dovetail", "generate", "--latents", str(file), *(["--model", model] if model else [])]
    print(f"what was to be decoded is in {file}: {shlex.join(words)} goes on there", file=sys.stderr)
