"""A pipeline that stays loaded, and paints one job after another."""

from __future__ import annotations

import contextlib
import functools
import itertools
import logging
import threading
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable

from .. import demo
from ..cache.traces import LOOKED_UP
from ..cli.opening.garbage import collect_from_now
from ..cli.opening.loading import Loading, check_here
from ..cli.options.call import call_arguments, own_checks, steering, takes, told_of_steps
from ..cli.options.inputs import in_size
from ..cli.options.painting import without_size
from ..cli.options.shared import Where
from ..cli.options.source import AS_IT_IS, Source
from ..cli.options.subject import Pipeline, find_pipeline, quiet_libraries, whole
from ..cli.options.weights import WeightFiles
from ..cli.output.picture import frames_of
from ..compiler.errors import DoesNotFitError
from ..conventions.prompts import told_of_cut
from ..conventions.tasks import class_for, told_of_models
from ..demo.words import told_of_demo
from ..pipelines.wrong_calls import wrong_calls_told
from ..progress.phases import Phases
from ..progress.refusals import telling
from ..runtime.devices.accelerator import accelerator_of
from .about import About, about
from .adapters import Shelf
from .ahead import Ahead, NextCall
from .bounds import Bounds
from .facts import DeviceFacts, Facts, memory_of_process
from .job import Job
from .pictures import opened_pictures
from .steps import OnStep, Steps

if TYPE_CHECKING:
    from PIL import Image

    from ..pipelines.pipeline import CompiledPipeline


logger = logging.getLogger(__name__)

_WARNINGS = 32
"""How many warnings of jobs are given: they have words of clients, and nobody may read what a server says."""
_warned = itertools.count()


class Painter(Protocol):
    """What paints jobs: in this process, or in another one."""

    def run(self, job: Job, on_step: OnStep) -> list[Image.Image]:
        """Paints the pictures of a job; raises what the callback raises, and DovetailError where it cannot be done."""

    def check(self, job: Job) -> None:
        """Raises DoesNotFitError for a job that finds no room, and UsageError for one that cannot be; runs nothing."""


@runtime_checkable
class Batching(Protocol):
    """A painter that can paint several jobs by one call."""

    def run_together(self, jobs: Sequence[Job], on_step: OnStep) -> list[list[Image.Image]]:
        """The pictures of each of several jobs, which differ in prompt and seed alone."""


@dataclass(frozen=True)
class Opening:
    """How a pipeline is opened, as plain data that another process can be sent: what `dovetail generate` is told.

    ``lora_dir`` is the folder of the LoRAs that jobs may name; the demo has its own.
    """

    model: str = ""
    where: Where = field(default_factory=Where)
    source: Source = AS_IT_IS
    weights: WeightFiles = field(default_factory=WeightFiles)
    dtype: str | None = None
    scheduler: str = ""
    lora_dir: str = ""
    threads: int | None = None

    def pipeline(self) -> Pipeline:
        """The pipeline that is named; raises UsageError where it is not there, or cannot run here."""
        pipeline = whole(find_pipeline(self.model, self.source), self.model)
        check_here(self.where.check(pipeline.components).rig)
        return pipeline

    def loading(self, pipeline: Pipeline) -> Loading:
        """How it is loaded."""
        cls = class_for(pipeline.kind)
        return Loading(pipeline, self.where, self.weights, self.dtype, pipeline_class=cls, scheduler=self.scheduler)

    def shelf(self) -> Shelf:
        """The LoRAs that jobs may name; raises UsageError where their folder is not there."""
        own = demo.adapter().parent if not self.model else None
        return Shelf.of(Path(self.lora_dir) if self.lora_dir else own)


class Runner:
    """One compiled pipeline, which paints the jobs of many callers, one after another.

    Args:
        opening: how the pipeline is opened.
        bounds: the largest job that is taken.
    """

    def __init__(self, opening: Opening, bounds: Bounds | None = None) -> None:
        quiet_libraries()
        self.pipeline = opening.pipeline()
        self.bounds = bounds or Bounds()
        self._is_demo = not opening.model
        self.shelf = opening.shelf()
        self.phases = Phases()
        """The seconds by phase of the last job."""
        self.ahead = Ahead()
        """What is encoded for the job that comes next."""
        self._expected: Job | None = None
        self._turn = threading.Lock()
        self._looked_up: Counter[str] = Counter()
        if opening.threads is not None:
            import torch

            torch.set_num_threads(opening.threads)
        self.pipe = opening.loading(self.pipeline).load(rests_in_files=False)
        self._others: dict[Any, Any] = {}
        collect_from_now()

    def run(self, job: Job, on_step: OnStep = lambda done, total, latents: None) -> list[Image.Image]:
        """Paints the pictures of a job, as `dovetail generate` paints them.

        Args:
            job: what is to be painted.
            on_step: is told of each step of each picture. What it raises ends the job; the pipeline is as before then.

        Raises UsageError for a job that cannot be, DoesNotFitError for one that finds no room, before anything runs.
        """
        following, self._expected = self._expected, None
        self.bounds.check(job)
        with self._turn, self.shelf.applied(self.pipe.dovetail, job.loras):
            self.phases = Phases()
            pipe, arguments = self._call(job)
            self._warn(pipe, arguments)
            steps = Steps(pipe, arguments, job.count, on_step)
            ahead = self.ahead.painting((id(pipe), job.loras), self._next(pipe, job, following))
            with self._checks(pipe, arguments), self.phases.watching(), ahead as step_ended:
                pictures = []
                for index in range(job.count):
                    is_last = index == job.count - 1  # before which the same is encoded once more
                    pictures += _painted(pipe, arguments, job, index, steps, step_ended if is_last else _nothing)
                return pictures

    def expect(self, job: Job | None) -> None:
        """Notes which job likely comes after the one that is painted next.

        Its prompt is encoded while that one is sampled, where devices allow; a wrong guess costs no more than that.
        """
        self._expected = job

    def _next(self, pipe: Any, job: Job, following: Job | None) -> NextCall | None:
        """The call of a job that comes after another, where it is one of the same pipeline with the same LoRAs."""
        if following is None or following.loras != job.loras:
            return None
        try:
            self.bounds.check(following)
            there, arguments = self._call(following)
        except Exception as error:  # which that job raises itself
            logger.debug("nothing is encoded ahead of a job: %s", error)
            return None
        return NextCall(pipe, {**arguments, **_own(pipe, following.seeds[0])}) if there is pipe else None

    def run_together(
        self, jobs: Sequence[Job], on_step: OnStep = lambda done, total, latents: None
    ) -> list[list[Image.Image]]:
        """Paints one picture for each of several jobs by one call, which may change last bits.

        Args:
            jobs: differ in prompt and seed alone.
            on_step: is told of each step, with the latents of all.

        Raises as `run` does.
        """
        import torch

        self._expected = None
        self.ahead.drop()
        for job in jobs:
            self.bounds.check(job)
        with self._turn, self.shelf.applied(self.pipe.dovetail, jobs[0].loras):
            self.phases = Phases()
            pipe, arguments = self._call(jobs[0])
            for job in jobs:
                self._warn(pipe, {**arguments, "prompt": job.prompt})
            arguments["prompt"] = [job.prompt for job in jobs]
            steps = Steps(pipe, arguments, 1, on_step)
            generators = [torch.Generator("cpu").manual_seed(job.seed) for job in jobs]
            with self._checks(pipe, arguments), self.phases.watching():
                made = pipe(**arguments, **told_of_steps(pipe, steps.told), generator=generators)
        return [[picture] for picture in made.images]

    def check(self, job: Job) -> None:
        """Plans a job, once for each kind of call; nothing runs.

        Raises DoesNotFitError where it finds no room, as soon as that is known: what would fit is not looked for.
        Raises UsageError for a job that cannot be.
        """
        self.bounds.check(job)
        with self._turn, self.shelf.applied(self.pipe.dovetail, job.loras):
            pipe, arguments = self._call(job)
            with self._checks(pipe, arguments), telling(_refuse):
                pipe.dovetail.plan(**arguments, **told_of_steps(pipe))

    def prepare(self) -> None:
        """Plans a picture of which nothing is said, and brings the weights that stay on their devices.

        Raises DoesNotFitError where that finds no room.
        """
        with self._turn:
            pipe, arguments = self._call(Job("a picture"))
            with self._checks(pipe, arguments):
                pipe.dovetail.prepare(**arguments, **told_of_steps(pipe))

    def about(self) -> About:
        """What it paints."""
        pipe, found = self.pipe, about(self.pipeline, list(self.shelf.files))
        side = getattr(pipe, "default_sample_size", 0) * getattr(pipe, "vae_scale_factor", 0)
        size = found.size if all(found.size) else (int(side), int(side))
        return replace(found, sampler=type(pipe.scheduler).__name__, size=size)

    def facts(self) -> Facts:
        """The seconds by phase of the last job, and how full the devices are."""
        seen = Counter(LOOKED_UP)
        since, self._looked_up = seen - self._looked_up, seen
        return Facts(dict(self.phases.seconds), dict(_devices(self.pipe.dovetail)), dict(since))

    def close(self) -> None:
        """Gives the weights back."""
        with self._turn:
            self.ahead.drop()
            self.pipe.dovetail.undo()

    def _call(self, job: Job) -> tuple[Any, dict[str, Any]]:
        """The pipeline that does the task of a job, and the arguments of its call."""
        pipe = self._doing(image=job.image is not None, mask=job.mask is not None)
        cls = type(pipe)
        size = {name: value for name, value in (("height", job.height), ("width", job.width)) if value is not None}
        given = {"prompt": job.prompt, **steering(job.steps, job.negative_prompt, job.guidance, job.cfg_scale), **size}
        if job.image is not None:
            given = {**without_size(cls, given), **in_size(opened_pictures(job, self.bounds), cls, size)}
        if job.strength is not None:
            given["strength"] = job.strength
        return pipe, call_arguments(pipe, given, self._defaults(cls))

    def _warn(self, pipe: Any, arguments: Mapping[str, Any]) -> None:
        """Logs what of a job is not read, and what the demo cannot paint."""
        of_demo = told_of_demo(arguments) if self._is_demo else ()
        for text in filter(None, (*of_demo, told_of_cut(pipe, arguments))):
            _warn_once(text)

    def _defaults(self, cls: Any) -> dict[str, Any]:
        """What the pipeline is called with where nothing else is asked for, as far as a class takes it."""
        return {name: value for name, value in (self.pipeline.defaults or {}).items() if takes(cls, name)}

    def _doing(self, *, image: bool, mask: bool) -> Any:
        """The pipeline, or another one of the same components that begins with a picture."""
        cls = class_for(self.pipeline.kind, image=image, mask=mask)
        if cls is None or isinstance(self.pipe, cls):
            return self.pipe
        if cls not in self._others:
            made = cls.from_pipe(self.pipe)
            made.set_progress_bar_config(disable=True)
            self._others[cls] = made
        return self._others[cls]

    @contextlib.contextmanager
    def _checks(self, pipe: Any, arguments: Mapping[str, Any]) -> Iterator[None]:
        """Turns what libraries say of wrong arguments into errors of ours."""
        wrong = wrong_calls_told(type(pipe).__name__, arguments, ())
        with own_checks(), wrong, told_of_models(type(pipe), self.pipeline.kind):
            yield


def _refuse(problem: str) -> None:
    raise DoesNotFitError(problem)


def _painted(
    pipe: Any, arguments: Mapping[str, Any], job: Job, index: int, steps: Steps, step_ended: Callable[[], None]
) -> list[Image.Image]:
    """One picture of a job, with its own seed; of a video its frames."""
    import torch

    def told(state: Mapping[str, Any]) -> None:
        steps.told(state)
        step_ended()

    seed = job.seeds[index]
    torch.manual_seed(seed)  # for schedulers that pipelines give no generator
    steps.begin(index)
    return frames_of(pipe(**arguments, **_own(pipe, seed, told)))


def _own(pipe: Any, seed: int, told: Callable[[Mapping[str, Any]], object] = lambda state: None) -> dict[str, Any]:
    """The arguments of a call that are a picture's own: who is told of steps, and where random numbers come from."""
    import torch

    return {**told_of_steps(pipe, told), "generator": torch.Generator("cpu").manual_seed(seed)}


@functools.lru_cache(_WARNINGS)
def _warn_once(text: str) -> None:
    """Logs what holds of many jobs with the first of them; so many texts at most, for they have words of clients."""
    count = next(_warned)
    if count < _WARNINGS:
        logger.warning("a job: %s", text)
    elif count == _WARNINGS:
        logger.warning("%d such warnings were given: there are no more of them", count)


def _nothing() -> None:
    """Is told that a step has ended, and does nothing."""


def _devices(handle: CompiledPipeline) -> Iterator[tuple[str, DeviceFacts]]:
    """How full each device of a pipeline is, and the host."""
    planned = handle.planned
    peaks = planned.peaks() if planned is not None else {}
    rig = planned.rig if planned is not None else handle.rig
    named = (device for one in handle.components.values() for device in one.devices)
    for device in dict.fromkeys((*named, *peaks, rig.host)):
        used, peak = memory_of_process() if device.is_host else accelerator_of(device.torch).memory()
        free = rig[device].free if device in rig.memory else 0
        yield device.name, DeviceFacts(used, peak, peaks[device].total if device in peaks else 0, free)
