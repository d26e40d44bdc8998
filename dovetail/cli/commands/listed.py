"""`dovetail generate --prompts-file`: a picture for each line of a file, by this process or by replicas."""

from __future__ import annotations

import contextlib
import functools
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from ...compiler.errors import UsageError
from ...compiler.printable import half_character, printable
from ..opening.loading import check_here
from ..options.bulk import Bulk, count_of
from ..options.call import MOST_STEPS, Size, steering
from ..options.inputs import Inputs
from ..options.lora import Loras
from ..options.painting import ANY_SEED, Painting
from ..options.shared import Where
from ..options.source import Source
from ..options.subject import find_pipeline, whole
from ..options.weights import WeightFiles
from ..output.progress import planning_shown, progress, tell
from ..output.results import print_json
from ..output.run import warn

if TYPE_CHECKING:
    from PIL import Image

    from ...jobs.bounds import Bounds
    from ...jobs.bulk.prompts import Line
    from ...jobs.bulk.record import Record
    from ...jobs.bulk.summary import Summary
    from ...jobs.bulk.work import Work
    from ...jobs.job import Job
    from ...jobs.runner import Opening

_SIDE, _BYTES, _LETTERS, _LORAS = 2**15, 2**30, 2**20, 64
"""Bounds of a line: those of a mistyped number, for who writes the file may ask for what fits."""


def refuse_others(others: Mapping[str, Any], size: Size, painting: Painting, inputs: Inputs, loras: Loras) -> None:
    """Raises UsageError for an option that means nothing of a list of prompts; ``others`` are some, as typed."""
    typed = {
        **others,
        "--prompt": painting.named_prompt,
        "--num-images": painting.count > 1,
        "--frames": size.frames,
        "--control-image": inputs.control_image,
        "--control-net": inputs.control_net,
        "--control-strength": inputs.control_strength,
        "--lora-apply-mode": loras.lora_apply_mode != "auto",
        "--lora-pickles": loras.lora_pickles,
    }
    ways = {
        "PROMPT": "write it in the file",
        "--prompt": "write it in the file",
        "--num-images": "write the prompt on so many lines, each of which has the next seed",
        "--dry-run": "dovetail plan says what one picture takes",
    }
    for name, value in typed.items():
        if value not in (None, False):
            raise UsageError(
                f"a list of prompts, --prompts-file, goes without {name}: {ways.get(name, 'leave it out')}"
            )


@dataclass(frozen=True)
class Listed:
    """A list of prompts with all that was typed of it."""

    bulk: Bulk
    where: Where
    size: Size
    painting: Painting
    inputs: Inputs
    weights: WeightFiles
    loras: Loras
    source: Source
    model: str
    output: Path
    dtype: str | None
    json: bool

    def paint(self) -> None:
        """Paints what is not done of the list, and says what was; raises typer.Exit(1) where a line has failed."""
        from ...jobs.bulk.prompts import read_prompts
        from ...jobs.bulk.record import Record

        assert self.bulk.prompts_file is not None
        _check_text({**self._options(), "--output": str(self.output)})
        pipeline = whole(find_pipeline(self.model, self.source), self.model)
        check_here(self.where.check(pipeline.components).rig)
        job = self._job()
        self._opening.shelf().found(job.loras)
        with Record.held(self.output):
            record = Record(Record.beside(self.output), self._options(), job.seed)
            seed = record.seed if self.painting.seed == ANY_SEED else job.seed
            lines = read_prompts(self.bulk.prompts_file, replace(job, seed=seed))
            self._paint(lines, record.left(lines), record)

    def _paint(self, lines: Sequence[Line], left: Sequence[Line], record: Record) -> None:
        from ...jobs.bulk.board import board
        from ...jobs.bulk.summary import Summary
        from ...jobs.bulk.work import Work

        before, most = len(lines) - len(left), lines[-1].number
        if before and not self.json:
            print(f"{before} of {len(lines)} pictures are there already, as {record.path} says", file=sys.stderr)
        record.write()
        work = Work(left, record, lambda line, pictures: self._save(line, pictures, most))
        try:
            with self._painting(left) as (paint, replicas):
                began = time.perf_counter()
                with board(len(lines), before, as_events=self.json) as work.board:
                    paint(work)
                seconds = time.perf_counter() - began
        except KeyboardInterrupt:
            there = len(lines) - len(record.left(lines))
            print(f"{there} of {len(lines)} pictures are there: the same command paints the others", file=sys.stderr)
            raise
        self._tell(Summary(work.results, before, seconds, replicas, record.path))

    def _tell(self, summary: Summary) -> None:
        if self.json:
            print_json(summary.document())
        else:
            print(*map(printable, summary.lines()), sep="\n", file=sys.stderr)
        if summary.failed:
            raise typer.Exit(1)

    @contextlib.contextmanager
    def _painting(self, left: Sequence[Line]) -> Iterator[tuple[Callable[[Work], None], list[str]]]:
        """What has lines be painted, and what the replicas are called that do it, if there are any."""
        from ...jobs.replicas import Replicas
        from ...jobs.runner import Runner

        jobs = [line.job for line in left if line.job is not None]
        if not jobs:
            yield lambda work: work.alone(None), []
            return
        if not self.bulk.replicas:
            with progress("loading the pipeline", as_events=self.json):
                runner = Runner(self._opening, _bounds())
            yield lambda work: work.alone(runner), []
            return
        openings = self._openings(jobs)
        replicas = Replicas(openings, _bounds(), told=self._told)
        with contextlib.ExitStack() as stack:
            with progress(f"starting {len(openings)} replicas", as_events=self.json):
                stack.enter_context(replicas)
            yield lambda work: work.over(replicas), list(openings)

    def _told(self, line: str) -> None:
        """Says what is to be known of replicas."""
        if self.json:
            tell("replica", told=line)
        else:
            print(printable(line), file=sys.stderr)

    def _openings(self, jobs: Sequence[Job]) -> dict[str, Opening]:
        """How each replica is opened, by what it is called."""
        from ...jobs.replicas.openings import openings

        count = count_of(self.bulk.replicas)
        if count is not None:
            return openings(self._opening, count, {})
        with planning_shown("planning how many replicas there is room for"):
            return openings(self._opening, None, _largest(jobs))

    @property
    def _opening(self) -> Opening:
        from ...jobs.runner import Opening

        return Opening(
            self.model, self.where, self.source, self.weights, self.dtype, self.painting.scheduler,
            self.loras.lora_model_dir, self.painting.threads,
        )  # fmt: skip

    def _job(self) -> Job:
        """What each line asks for that says nothing else."""
        from ...jobs.bulk.prompts import named_loras
        from ...jobs.job import Job

        painting, size = self.painting, self.size.arguments()
        painting.arguments()
        return Job(
            "", painting.negative_prompt, size.get("width"), size.get("height"), painting.steps, painting.guidance,
            painting.cfg_scale, painting.seeds(painting.seed)[0], named_loras(self.loras.lora or ()),
            _bytes_of(self.inputs.image), _bytes_of(self.inputs.mask), self.inputs.strength,
        )  # fmt: skip

    def _options(self) -> dict[str, str]:
        """What pictures depend on besides their jobs, as it was typed."""
        typed = {
            "--model": self.model,
            "--weights": " ".join([*self.weights.words(), *self.source.words()]),
            "--dtype": self.dtype or "",
            "--scheduler": self.painting.scheduler,
            "--lora-model-dir": self.loras.lora_model_dir,
            "--output": self.output.suffix,
            **self._rounding(),
        }
        return {name: value for name, value in typed.items() if value}

    def _rounding(self) -> dict[str, str]:
        """What is computed otherwise, wherever it runs; ``auto`` tiles and no chunks are what is done anyway."""
        where = self.where
        return {
            "--attention": where.attention or "",
            "--cache": where.cache or "",
            "--vae-tiling": where.vae_tiling.replace("auto", ""),
            "--chunk": "" if where.chunk == "off" else where.chunk,
            "--inductor": "on" * where.inductor,
            "--bf16-partials": "on" * where.bf16_partials,
            "--passes": where.passes,
        }

    def _save(self, line: Line, pictures: list[Image.Image], most: int) -> list[Path]:
        """Writes the picture of a line, and prints its file for another program."""
        from ...jobs.bulk.record import named
        from ..output.picture import FPS, other_size, save_frames

        files = save_frames(pictures, named(self.output, line.number, most), self.painting.fps or FPS)
        if not self.json and not sys.stdout.isatty():
            sys.stdout.write("".join(f"{file}\n" for file in files))  # at once, for several threads write
            sys.stdout.flush()
        if line.job is not None:
            _warn_once(other_size(pictures[0].size, line.job.width, line.job.height))
        return files


@functools.cache
def _warn_once(text: str) -> None:
    """Says what holds of several lines of a list with the first of them."""
    warn(text)


def _check_text(typed: Mapping[str, str]) -> None:
    """Raises UsageError for what the file that says what is done cannot hold: a path of bytes that are no text."""
    for name, value in typed.items():
        if half_character(value):
            raise UsageError(f"{name} {value[:80]!a} is no text in UTF-8: name another path, or rename it")


def _bounds() -> Bounds:
    from ...jobs.bounds import Bounds

    return Bounds(_SIDE, _SIDE**2, MOST_STEPS, 1, _LETTERS, _LORAS, _BYTES)


def _bytes_of(file: Path | None) -> bytes | None:
    try:
        return None if file is None else file.read_bytes()
    except OSError as error:
        raise UsageError(f"cannot read a picture from {file}: {error.strerror}") from error


def _largest(jobs: Sequence[Job]) -> dict[str, Any]:
    """The arguments of the call that asks for most pixels."""
    job = max(jobs, key=lambda one: (one.width or 0) * (one.height or 0))
    size = {name: value for name, value in (("height", job.height), ("width", job.width)) if value is not None}
    return {
        "prompt": job.prompt, **steering(job.steps, job.negative_prompt, job.guidance, job.cfg_scale), **size
    }  # fmt: skip
