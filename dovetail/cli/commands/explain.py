"""`dovetail explain` and `dovetail diff`: a placement in sentences, and what differs between two."""

from __future__ import annotations

import textwrap
from typing import Annotated

import typer

from ..opening.parts import wanted
from ..options.call import Sample
from ..options.inputs import Inputs
from ..options.shared import Debug, Dtype, Json, Where
from ..options.source import Source
from ..options.subject import Subject
from ..options.weights import WeightFiles
from ..output.results import print_json
from ..output.tables import width


def explain(
    where: Where,
    sample: Sample,
    inputs: Inputs,
    weights: WeightFiles,
    source: Source,
    subject: Subject = "",
    dtype: Dtype = None,
    json: Json = False,
    debug: Debug = False,
) -> None:
    """Explain a placement in sentences: where each part is and why, what limits each device, what would change it."""
    from ...explain.sentences import explain_plan, explain_programs

    asked = wanted(subject, "", where, sample, weights, source, dtype, inputs)

    def make() -> list[str]:
        parts = asked.parts()
        programs = {name: part.program for name, part in parts.items()}
        return list(explain_plan(parts.account) if parts.account else explain_programs(programs))

    answer = asked.answered(("explain",), make)
    if json:
        print_json(answer.told)
        return
    told = [*answer.told, *filter(None, [answer.kept])]
    print("\n\n".join(textwrap.fill(one, width(), break_on_hyphens=False) for one in told))


Plan = Annotated[str, typer.Argument(metavar="PLAN", help="A plan file, or a folder of them.")]


def diff(
    first: Plan,
    second: Plan,
    json: Json = False,
    debug: Debug = False,
) -> None:
    """Say what differs between two placements, as plan files or folders of them: devices, weights, peaks, seconds."""
    from ...explain.differences import differences
    from ..opening.parts import read_plans

    told = list(differences(read_plans(first), read_plans(second)))
    if json:
        print_json(told)
        return
    print(*(told or ["they are alike"]), sep="\n")
