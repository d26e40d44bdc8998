"""`dovetail plan`: where a pipeline would run and rest, on this machine or on one that is not here."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

from ...compiler.errors import DovetailError, UsageError
from ..options.call import PICTURE, Size
from ..options.shared import Debug, Dtype, Json, Where
from ..options.subject import Pipeline, Subject, find_pipeline
from ..options.weights import WeightFiles
from ..output.progress import progress
from ..output.results import print_json, print_table
from .parts import planned

if TYPE_CHECKING:
    from collections.abc import Mapping

    from ...planning.table import Account


def plan(
    where: Where,
    size: Size,
    weights: WeightFiles,
    subject: Subject = "",
    steps: Annotated[int | None, typer.Option(min=1, help="Denoising steps.", rich_help_panel=PICTURE)] = None,
    dtype: Dtype = None,
    json: Json = False,
    debug: Debug = False,
) -> None:
    """Say where a pipeline's components run and rest: least predicted time within every budget.

    Nothing is computed and no weight is read. What is said by --backend, --params-backend and the like is kept to; the
    rest is searched. The last line has the options that ask for the same. `generate --dry-run` says the same of a call.
    """
    pipeline = find_pipeline(subject)
    if pipeline.only:
        raise UsageError(f"{subject} is one component: name the folder of its pipeline, {pipeline.place}")
    where.check(pipeline.components)
    given = {"prompt": "a picture", **({"num_inference_steps": steps} if steps else {}), **size.arguments()}
    with progress("tracing the components"):
        account = accounted(pipeline, where, weights, given, dtype=dtype)
    print_account(account, json)


def accounted(
    pipeline: Pipeline, where: Where, weights: WeightFiles, given: Mapping[str, Any], **options: Any
) -> Account:
    """The plan of a call with these arguments, with all that is said of it; ``options`` are those of `planned`.

    Raises DovetailError for a call that cannot be planned.
    """
    dry, generation = planned(pipeline, where, weights, given, **options)
    if generation is None:
        raise DovetailError("this call cannot be planned: nothing of it could be traced; see --debug")
    return dry.account(generation)


def print_account(account: Account, json: bool) -> None:
    """Prints a plan as tables and lines, or as one JSON document."""
    from ...planning.table import HEAD, HEAD_OF_DEVICES, RIGHT, RIGHT_OF_DEVICES

    if json:
        print_json(account.document())
        return
    print_table(HEAD, account.rows(), RIGHT)
    print()
    print_table(HEAD_OF_DEVICES, account.rows_of_devices(), RIGHT_OF_DEVICES)
    print()
    print(*account.told(), sep="\n")
