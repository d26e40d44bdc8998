"""`dovetail verify`: whether a placement keeps every rule."""

from __future__ import annotations

from typing import Annotated

import typer

from .call import Size
from .options import Debug, Json, Where
from .subject import Component, Subject

Deep = Annotated[bool, typer.Option("--deep", help="Also run it at full size without data: shapes, dtypes, devices.")]


def verify(
    where: Where,
    size: Size,
    subject: Subject = "",
    component: Component = "",
    deep: Deep = False,
    json: Json = False,
    debug: Debug = False,
) -> None:
    """Check the plans of a pipeline, of one component, or of a plan file against the rules."""
    raise NotImplementedError
