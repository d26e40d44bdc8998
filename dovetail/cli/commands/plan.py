"""`dovetail plan`: where a pipeline would run and rest, on this machine or on one that is not here."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from ...compiler.errors import UsageError
from ...compiler.printable import printable
from ...conventions.copied import generate_line
from ..opening.answered import Question
from ..options.call import Sample
from ..options.inputs import Inputs
from ..options.shared import Debug, Dtype, Json, Where
from ..options.source import Source
from ..options.subject import Whole, find_pipeline, is_plan, refuse_config
from ..options.weights import WeightFiles
from ..options.words import words_of
from ..output.progress import planning_shown
from ..output.results import print_json, print_table

if TYPE_CHECKING:
    from ...planning.table import Told


def plan(
    where: Where,
    sample: Sample,
    inputs: Inputs,
    weights: WeightFiles,
    source: Source,
    subject: Whole = "",
    dtype: Dtype = None,
    json: Json = False,
    debug: Debug = False,
) -> None:
    """Find where to run a pipeline's components and keep their weights: least predicted time within every budget.

    Nothing is computed and no weight is read. What is said by --backend, --params-backend and the like is kept to; all
    else is searched. The last line is the command that runs this plan. `generate --dry-run` says the same of a call.
    """
    refuse_config(subject)
    if subject.endswith(".json") and (is_plan(subject) or not Path(subject).exists()):
        raise UsageError(f"{subject} is a plan, and this makes one: dovetail show {shlex.quote(subject)} shows it")
    inputs.check()
    pipeline = inputs.added_to(find_pipeline(subject, source))
    if pipeline.only:
        raise UsageError(f"{subject} is one component: name the folder of its pipeline, {pipeline.place}")
    rig = where.check(pipeline.components).rig
    question = Question(pipeline, where, rig, sample, weights, dtype, inputs, ("plan",))

    def make() -> Told:
        with planning_shown("tracing and planning"):
            loading, given = question.loading()
            return loading.account(given).told()

    answer = question.answered(make)
    words = [*sample.words(), *weights.words(), *source.words(), *inputs.words(), *words_of({"--dtype": dtype})]
    print_plan(answer.told, json, subject, [*words, *where.rig_words], kept=answer.kept)


def print_plan(
    told: Told, json: bool, model: str, words: Sequence[str], prompt: str | None = None, *, kept: str = ""
) -> None:
    """Prints a plan as tables and lines, or as one JSON document.

    ``model``, ``words`` and ``prompt`` are what was typed besides the placement, for the line to be copied, and
    ``kept`` says that the plan was made earlier, if it was.
    """
    from ...planning import shared_work as shared
    from ...planning.choice import HEAD_OF_CHOICES, RIGHT_OF_CHOICES
    from ...planning.table import HEAD, HEAD_OF_DEVICES, RIGHT, RIGHT_OF_DEVICES

    if json:
        print_json({**told["document"], "kept": bool(kept)})
        return
    for warning in told["warnings"]:
        print(f"warning: {printable(warning)}\n")
    print_table(HEAD, told["rows"], RIGHT)
    print()
    if told["groups"]:
        print_table(shared.HEAD_OF_GROUPS, told["groups"], shared.RIGHT_OF_GROUPS)
        print()
        print_table(shared.HEAD_OF_BLOCKS, told["blocks"], shared.RIGHT_OF_BLOCKS)
        print()
    print_table(HEAD_OF_DEVICES, told["devices"], RIGHT_OF_DEVICES)
    print()
    if told["choices"]:
        print_table(HEAD_OF_CHOICES, told["choices"], RIGHT_OF_CHOICES)
        print()
    remarks = [*told["remarks"], *filter(None, [kept])]
    print(*map(printable, remarks), generate_line(model, told["settings"], words, prompt), sep="\n")
