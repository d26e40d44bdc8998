"""`dovetail show`: a placement on one screen, as text, as a picture or as data."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Annotated, Literal

import typer

from ...compiler.errors import UsageError
from ...compiler.units import format_bytes
from ..opening.parts import wanted
from ..options.call import Sample
from ..options.shared import Debug, Dtype, Json, Where
from ..options.source import Source
from ..options.subject import Component, Subject
from ..options.weights import WeightFiles
from ..options.words import words_of
from ..output.results import check_writable, json_text, put, put_page
from ..output.shown import FORMS, PICTURES, Scene
from ..output.tables import width

logger = logging.getLogger(__name__)

SCHEMA = "json-schema"
OF_SUFFIX = {
    ".svg": "svg", ".html": "html", ".htm": "html", ".json": "json", ".dot": "dot", ".gv": "dot", ".mmd": "mermaid",
    ".graphml": "graphml",
}  # fmt: skip
"""The form of a file by how its name ends, where --as is left out."""
_WORDS = {"text": "a summary as text", "full": "every operation as text", "html": "a page", "trace": "a time line"}
"""What some forms are called where it is said that a file has them; the others are called by their own names."""
Form = Annotated[
    Literal["text", "html", "svg", "mermaid", "dot", "trace", "json", "json-schema", "graphml"] | None,
    typer.Option(
        "--as",
        "--format",
        "-f",
        help="A summary, a page, facts as data, their schema or a graph, a picture, or predicted times for Perfetto; "
        "left out, what the name of -o ends with, else text.",
    ),
]
Full = Annotated[bool, typer.Option("--full", help="As text: every operation, in the form that reads back.")]
Depth = Annotated[
    Literal["segments", "blocks", "nodes"] | None,
    typer.Option("--depth", help="How deep svg, mermaid and dot draw: segments if left out."),
]
Output = Annotated[Path | None, typer.Option("-o", "--output", metavar="FILE", help="Write it to a file.")]


def show(
    where: Where,
    sample: Sample,
    weights: WeightFiles,
    source: Source,
    subject: Subject = "",
    component: Component = "",
    dtype: Dtype = None,
    form: Form = None,
    depth: Depth = None,
    full: Full = False,
    output: Output = None,
    json: Json = False,
    debug: Debug = False,
) -> None:
    """Show what runs where: of a pipeline, of one component, or of a plan file."""
    of_name = OF_SUFFIX.get(output.suffix.lower(), "text") if output is not None and not full else "text"
    told_as: str = "json" if json else form or of_name
    asked_for = f"--as {told_as}" if form or json or output is None else f"{told_as}, by the name of {output},"
    if full and told_as != "text":
        raise UsageError(f"--full is of --as text, and {asked_for} was asked for: leave out one of them")
    if depth and told_as not in PICTURES:
        raise UsageError(f"--depth is of --as {' and '.join(PICTURES)}, and {asked_for} was asked for: leave it out")
    if output is not None:
        check_writable(output)
    if told_as == "svg":
        from ...draw.graph.svg import check_drawable

        check_drawable()
    if told_as == SCHEMA:
        from ...draw.schema import Shown

        put(json_text(Shown.model_json_schema()), output)
        _tell(None if json else output, told_as)
        return
    from ...plans.budgets import too_small_budgets

    asked = wanted(subject, component, where, sample, weights, source, dtype)
    told_as = "full" if full else told_as

    def make() -> str:
        parts = asked.parts()
        for name, part in parts.items():
            for error in too_small_budgets(name, part.program, part.rig):
                logger.warning("%s", error)
        programs = {name: part.program for name, part in parts.items()}
        words = [*sample.words(), *weights.words(), *source.words(), *words_of({"--dtype": dtype}), *where.rig_words]
        scene = Scene(programs, parts.account, subject, words, depth or "segments", parts.place)
        return FORMS[told_as](scene)

    write = put_page if told_as == "html" else put
    write(asked.answered(("show", told_as, depth, subject, width()), make).told, output)
    _tell(None if json else output, told_as)


def _tell(output: Path | None, form: str) -> None:
    """Says which file was written, in which form, and how large it is."""
    if output is not None:
        print(f"{output}: {_WORDS.get(form, form)}, {format_bytes(output.stat().st_size)}")
