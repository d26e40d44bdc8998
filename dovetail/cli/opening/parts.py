"""The components of a pipeline, compiled for the devices that were asked for, without running the model."""

from __future__ import annotations

import shlex
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ...compiler.errors import UsageError
from ...conventions.hub import INDEX
from ..options.call import Sample
from ..options.inputs import NO_INPUTS, Inputs
from ..options.shared import Where
from ..options.source import Source
from ..options.subject import check_component, check_path, find_pipeline, is_checkpoint, refuse_config
from ..options.weights import WeightFiles
from ..options.words import words_of
from ..output.progress import planning_shown
from .answered import Question
from .loading import Loading

if TYPE_CHECKING:
    from ...cache.answers import Answer
    from ...compiler.ir.program import Program
    from ...components.compiled import CompiledModule
    from ...planning.table import Account


class Parts(dict[str, "CompiledModule"]):
    """What was compiled, by name, and of a pipeline what else is known.

    ``pipe`` is the pipeline, whose modules have the buffers that are in no file, ``place`` is its folder where that of
    a component was named, and ``account`` the plan of its call.
    """

    pipe: Any = None
    place: str = ""
    account: Account | None = None


@dataclass(frozen=True)
class Wanted:
    """What a command is about, once it was checked: plan files, or a pipeline with what was typed of it.

    ``component`` is the one that is wanted, all of them where it is empty, and ``question`` is None of plan files.
    """

    files: Sequence[Path]
    component: str
    question: Question | None

    def parts(self, *, in_one_step: bool = False, rests_in_files: bool = True) -> Parts:
        """What plan files hold, or what components of a pipeline compile to, by name, in the order of their calls.

        Of a pipeline the configs of the components are enough; the type is then the one given, or bfloat16. It is
        planned for the steps that are asked for; where none are, ``in_one_step`` is enough to know what is called.
        ``rests_in_files`` says whether what the host computes with rests in its files, as in `dovetail generate`;
        whoever runs a plan elsewhere may have it in no files.
        """
        asked = self.question
        if asked is None:
            return _of_plans(self.files, self.component)
        with planning_shown("tracing and planning"):
            sample = asked.sample.one_step() if in_one_step else None
            return _plan(*asked.loading(sample), self.component, rests_in_files)

    def answered(self, form: tuple[object, ...], make: Callable[[], Any]) -> Answer:
        """What ``make`` says of these, or said before of the same pipeline, as JSON takes it."""
        from ...cache.answers import Answer

        if self.question is None:
            return Answer(make(), ())
        return replace(self.question, form=(*form, self.component)).answered(make)


def wanted(
    subject: str,
    component: str,
    where: Where,
    sample: Sample,
    weights: WeightFiles,
    source: Source,
    dtype: str | None = None,
    inputs: Inputs = NO_INPUTS,
) -> Wanted:
    """What was typed, checked; raises UsageError and SpecError for what cannot be."""
    check_path(subject)
    refuse_config(subject)
    path = Path(subject)
    files = _plans(path) if subject else []
    if files:
        if weights.are_named:
            raise UsageError(f"{path} is a plan, which has no weights: leave out {weights.words()[0]}")
        typed = [*where.typed, *sample.words(), *inputs.words(), *source.words(), *words_of({"--dtype": dtype})]
        if typed:
            raise UsageError(f"{path} is read as a plan, in which this is decided: leave out {typed[0]}")
        return Wanted(files, component, None)
    if path.suffix == ".json" and not path.exists():
        asked = shlex.quote(str(path))
        raise UsageError(f"there is no plan {path}: dovetail compile --component NAME -o {asked} writes one")
    inputs.check()
    pipeline = inputs.added_to(find_pipeline(subject, source))
    name = check_component(pipeline, component)
    rig = where.check(pipeline.components).rig
    return Wanted([], name, Question(pipeline, where, rig, sample, weights, dtype, inputs))


def _plans(path: Path) -> list[Path]:
    """The plan file that was named, or those of a folder that `dovetail compile -o` wrote."""
    if is_checkpoint(path):
        return []
    if path.is_file():
        return [path]
    return [] if any((path / name).exists() for name in (INDEX, "config.json")) else sorted(path.glob("*.json"))


def _of_plans(files: Sequence[Path], component: str) -> Parts:
    from ... import load
    from ...compiler.text.plan_file import component_in

    if component:
        raise UsageError(f"{files[0]} is a plan of one component: leave out --component {component}")
    return Parts({component_in(file): load(file) for file in files})


def read_plans(place: str) -> dict[str, Program]:
    """The programs of a plan file or of a folder of them, by name; raises UsageError where there is none."""
    check_path(place)
    files = _plans(Path(place))
    if not files:
        raise UsageError(f"there is no plan in {place}: dovetail compile MODEL_FOLDER -o FOLDER writes some")
    return {name: part.program for name, part in _of_plans(files, "").items()}


def _plan(loading: Loading, given: Mapping[str, Any], wanted: str, rests_in_files: bool) -> Parts:
    dry, generation = loading.plan(given, rests_in_files=rests_in_files)
    plans = dry.plans()
    chosen = {name: plan for name, plan in plans.items() if not wanted or name.partition(".")[0] == wanted}
    if not chosen:
        raise UsageError(
            f"{loading.pipeline.place} calls {wanted or 'nothing'} in no picture: there is nothing to compile"
        )
    parts = Parts(chosen)
    parts.pipe = dry.pipe
    parts.place = loading.pipeline.place if loading.pipeline.only else ""
    parts.account = dry.account(generation) if generation is not None else None
    return parts
