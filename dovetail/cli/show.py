"""`dovetail show`: a placement as text, as a picture or as data."""

from __future__ import annotations

from typing import Annotated, Literal

import typer

from ..compiler.printable import printable
from .call import Size
from .options import Debug, Dtype, Json, Where
from .output import print_json
from .parts import compiled_parts
from .subject import Component, Subject
from .weight_options import WeightFiles

Format = Annotated[
    Literal["text", "dot", "mermaid", "json"],
    typer.Option("--format", "-f", help="Every node as text, the segments as a picture, or everything as data."),
]


def show(
    where: Where,
    size: Size,
    weights: WeightFiles,
    subject: Subject = "",
    component: Component = "",
    dtype: Dtype = None,
    format: Format = "text",
    json: Json = False,
    debug: Debug = False,
) -> None:
    """Show what runs where: of a pipeline, of one component, or of a plan file."""
    parts = compiled_parts(subject, component, where, size, weights, dtype)
    from ..compiler.text.printer import print_program
    from ..draw import document, dot, mermaid

    programs = {name: part.program for name, part in parts.items()}
    if json or format == "json":
        print_json([document(program, name) for name, program in programs.items()])
    elif format == "text":
        print(printable("\n".join(map(print_program, programs.values()))), end="")
    else:
        print({"dot": dot, "mermaid": mermaid}[format](programs))
