"""`dovetail generate`: a picture from a prompt."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any

import typer

from ...compiler.errors import UsageError
from ...conventions.copied import PROMPT
from ...conventions.tasks import told_of_models
from ...progress.phases import Phases, begin
from ...recovery.latents import Latents, read_latents
from ..opening.garbage import collect_from_now
from ..opening.loading import Loading, check_here
from ..options.bulk import Bulk
from ..options.call import Size, call_arguments, frame_rate
from ..options.inputs import Inputs
from ..options.lora import Loras
from ..options.painting import ANY_SEED, Painting, called
from ..options.shared import Debug, Dtype, Json, Where
from ..options.source import Source
from ..options.subject import find_pipeline, whole
from ..options.weights import WeightFiles
from ..options.words import words_of
from ..output.figures import document_of, line_of, peaks_of, reserved_of
from ..output.progress import planning_shown, progress, tell
from ..output.results import check_writable, print_json
from ..output.run import Run, warn
from .listed import Listed, refuse_others
from .plan import print_plan
from .profile import profiled


def generate(
    where: Where,
    size: Size,
    painting: Painting,
    inputs: Inputs,
    weights: WeightFiles,
    loras: Loras,
    source: Source,
    bulk: Bulk,
    prompt: Annotated[str | None, typer.Argument(metavar="PROMPT", help="What to generate.")] = None,
    model: Annotated[
        str,
        typer.Option("-m", "--model", metavar="FOLDER", help="A pipeline's folder, file or hub id; else the demo."),
    ] = "",
    output: Annotated[
        Path, typer.Option("-o", "--output", metavar="FILE", help="Where it goes: .png, .jpg, .webp, .gif, .mp4.")
    ] = Path("out.png"),
    dtype: Dtype = None,
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
    _check_files(output, profile, latents_to)
    inputs.check()
    bulk.check()
    if bulk.prompts_file is not None:
        others = {
            "PROMPT": prompt, "--latents": latents, "--save-latents": latents_to, "--profile": profile,
            "--dry-run": dry_run, "--plans": plans,
        }  # fmt: skip
        refuse_others(others, size, painting, inputs, loras)
        Listed(bulk, where, size, painting, inputs, weights, loras, source, model, output, dtype, json).paint()
        return
    pipeline = inputs.added_to(whole(find_pipeline(model, source), model))
    request = where.check(pipeline.components, has_plans=plans is not None)
    typed = painting.prompt(prompt)
    prompt, adapters = loras.arguments(typed, pipeline)
    given = {"prompt": prompt, **painting.arguments(), **size.arguments()}
    saved, seed = _saved(latents, given, painting)
    cls, given = called(pipeline, inputs, given, painting.fps)
    painting.use_threads()
    loading = Loading(
        pipeline, where, weights, dtype, {**adapters, "plans": plans}, cls, inputs.components, painting.scheduler
    )
    if dry_run:
        with planning_shown("planning"):
            account = loading.account(given)
        more = [*size.words(), *painting.words(), *source.words(), *weights.words(), *loras.words(), *inputs.words()]
        print_plan(
            account.told(),
            json,
            model,
            [*more, *words_of({"--dtype": dtype}), *where.rig_words],
            PROMPT if typed is None else typed,
        )
        return
    check_here(request.rig)
    phases = Phases((lambda name: tell("phase", phase=name)) if json else lambda _: None)
    with progress("loading the pipeline", as_events=json), phases.watching():
        begin("loading")
        pipe = loading.load()
    collect_from_now()
    arguments = call_arguments(pipe, given, pipeline.defaults)
    rate = frame_rate(type(pipe))
    if painting.fps and rate:  # what is computed depends on it
        arguments["frame_rate"] = painting.fps
    if saved and saved.pipeline != type(pipe).__name__:
        raise UsageError(
            f"{latents} is of a {saved.pipeline}, not of {type(pipe).__name__}: name its --model and the pictures that "
            "it began with, --image FILE"
        )
    _warn_of_prompt(pipe, arguments, is_demo=not model)
    again = [*(["--model", model] if model else []), *source.words(), *weights.words(), *inputs.words()]
    run = Run(pipe, arguments, phases, output, again, painting.fps or rate, latents_to, json, size.arguments())
    seeds = painting.seeds(seed)
    with profiled(profile, pipe), told_of_models(cls, pipeline.kind):
        files = run.pictures(seeds, saved)
    peaks, reserved = peaks_of(pipe.dovetail), reserved_of(pipe.dovetail)
    decision = pipe.dovetail.decision
    quicker = decision.quicker if decision is not None else None
    taken = decision.taken if decision is not None else ()
    if json:
        told = {"files": list(map(str, files)), "seed": seeds[0], "seconds": round(sum(phases.seconds.values()), 3)}
        modes = {one.component: one.mode for one in taken}
        parts = {one.component: one.micro_batches for one in taken if one.micro_batches > 1}
        found = {"modes": modes, **({"micro_batches": parts} if parts else {})}
        print_json({**told, **document_of(phases, peaks, reserved), "call": _told(arguments), **found})
    else:
        if quicker is not None:
            print(quicker, file=sys.stderr)
        if taken:
            from ...planning.choice import line_of_taken

            print(line_of_taken(taken), file=sys.stderr)
        print(line_of(phases, peaks, reserved) + (f"; seed {seeds[0]}" if seed == ANY_SEED else ""), file=sys.stderr)


def _check_files(output: Path, *others: Path | None) -> None:
    """Raises UsageError for a file that cannot be written, is named twice, or can hold no picture."""
    from ..output.picture import check_suffix

    paths = [path for path in (output, *others) if path is not None]
    for path in paths:
        check_writable(path)
    twice = next((path for path in paths if paths.count(path) > 1), None)
    if twice is not None:
        raise UsageError(f"{twice} is named twice, and only one thing can be written there: name another file")
    check_suffix(output)


def _warn_of_prompt(pipe: Any, arguments: Mapping[str, Any], *, is_demo: bool) -> None:
    """Says what the demo cannot paint, and what of a prompt is not read."""
    from ...conventions.prompts import told_of_cut
    from ...demo.words import told_of_demo

    warn(*(told_of_demo(arguments) if is_demo else ()), told_of_cut(pipe, arguments))


def _saved(file: Path | None, given: dict[str, Any], painting: Painting) -> tuple[Latents | None, int]:
    """The latents of a file, whose call takes the place of what was not typed; and the seed of that call."""
    if file is None:
        if given["prompt"] is None:
            raise UsageError("generate needs a prompt that says what to generate, or --latents FILE to go on from")
        return None, painting.seed
    if painting.count > 1:
        raise UsageError(f"{file} has one picture's latents: leave out --num-images {painting.count}")
    saved = read_latents(file)
    before = dict(saved.call)
    seed = int(before.pop("seed", painting.seed))
    given.update({name: value for name, value in before.items() if given.get(name) is None})
    return saved, seed


def _told(arguments: Mapping[str, Any]) -> dict[str, Any]:
    """The arguments of a call as JSON takes them: of a picture its size."""
    return {
        name: f"a picture of {value.width}x{value.height}" if hasattr(value, "resize") else value
        for name, value in arguments.items()
    }
