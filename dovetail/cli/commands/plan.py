"""`dovetail plan`: where a pipeline would run and rest, on this machine or on one that is not here."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from ...compiler.errors import UsageError
from ...compiler.printable import printable
from ...conventions.copied import PROMPT, generate_line
from ..opening.loading import Loading
from ..options.call import Sample
from ..options.inputs import Inputs
from ..options.painting import called
from ..options.shared import Debug, Dtype, Json, Where
from ..options.source import Source
from ..options.subject import Whole, find_pipeline, is_plan, refuse_config
from ..options.weights import WeightFiles
from ..options.words import words_of
from ..output.progress import progress
from ..output.results import print_json, print_table

if TYPE_CHECKING:
    from ...planning.table import Account


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
    """Say where a pipeline's components run and rest: least predicted time within every budget.

    Nothing is computed and no weight is read. What is said by --backend, --params-backend and the like is kept to; the
    rest is searched. The last line is the command that paints so. `generate --dry-run` says the same of a call.
    """
    refuse_config(subject)
    if subject.endswith(".json") and (is_plan(subject) or not Path(subject).exists()):
        raise UsageError(f"{subject} is a plan, and this makes one: dovetail show {subject} shows it")
    inputs.check()
    pipeline = inputs.added_to(find_pipeline(subject, source))
    if pipeline.only:
        raise UsageError(f"{subject} is one component: name the folder of its pipeline, {pipeline.place}")
    where.check(pipeline.components)
    with progress("tracing and planning"):
        cls, given = called(pipeline, inputs, sample.call())
        account = Loading(pipeline, where, weights, dtype, pipeline_class=cls, components=inputs.components).account(
            given
        )
    words = [*sample.words(), *weights.words(), *source.words(), *inputs.words(), *words_of({"--dtype": dtype})]
    print_account(account, json, subject, [*words, *where.rig_words])


def print_account(account: Account, json: bool, model: str, words: Sequence[str], prompt: str = PROMPT) -> None:
    """Prints a plan as tables and lines, or as one JSON document.

    ``model``, ``words`` and ``prompt`` are what was typed besides the placement, for the line to be copied.
    """
    from ...planning.table import HEAD, HEAD_OF_DEVICES, RIGHT, RIGHT_OF_DEVICES

    if json:
        print_json(account.document())
        return
    for warning in account.warnings:
        print(f"warning: {printable(warning)}\n")
    print_table(HEAD, account.rows(), RIGHT)
    print()
    print_table(HEAD_OF_DEVICES, account.rows_of_devices(), RIGHT_OF_DEVICES)
    print()
    print(*account.remarks(warned=True), generate_line(model, account.settings, words, prompt), sep="\n")
