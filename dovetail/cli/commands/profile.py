"""`dovetail profile`: how long things were predicted to take, and how long they took."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ..options.shared import Debug, Json
from ..output.results import print_json, print_table

if TYPE_CHECKING:
    from ...runtime.devices.recording import Recording

HEAD = ("component", "lane", "what", "calls", "predicted ms", "measured ms", "ratio")
_RIGHT = (3, 4, 5, 6)
_MOST = 1000
_LEAST = 5e-7
Save = Annotated[bool, typer.Option("--save", help="Have the next plans use what was measured.")]
Traced = Annotated[Path, typer.Argument(metavar="FILE", help="What `dovetail generate --profile` wrote.")]


def profile(file: Traced, save: Save = False, json: Json = False, debug: Debug = False) -> None:
    """Compare a profile's measured times with the predicted ones, by segment, load and copy, in a call.

    Simulated devices are predicted as fast as this machine's processor, which computes for them. --save has the next
    plans rest on what was measured of the devices of this machine.
    """
    from ...profile.chrome import read_trace
    from ...profile.compare import compared

    rows = compared(read_trace(file))
    if save:
        from ...profile.saved import check_is_newer, saved

        check_is_newer(file)
        print(*saved(rows), sep="\n", file=sys.stderr if json else sys.stdout)
        if not json:
            return
    if json:
        print_json([{**asdict(one), "ratio": one.ratio} for one in rows])
        return
    print_table(
        HEAD,
        [
            (one.program, one.lane, one.what, str(one.calls), _ms(one.predicted), _ms(one.measured), _times(one.ratio))
            for one in rows
        ],
        _RIGHT,
    )


@contextlib.contextmanager
def profiled(file: Path | None, pipe: Any) -> Iterator[None]:
    """Writes a profile of what a compiled pipeline does meanwhile, if there is a file for it."""
    if file is None:
        yield
        return
    from ...runtime.devices.recording import recording

    with recording() as recorded:
        yield
    _write_profile(file, recorded, pipe)


def _write_profile(file: Path, recording: Recording, pipe: Any) -> None:
    """Writes the trace of a call of a compiled pipeline: what was measured, and what is predicted of the same calls."""
    from ...components.compiled import CompiledModule
    from ...fitting.decide import speeds_rehearsed
    from ...profile.chrome import trace_of
    from ...profile.sides import slices_of
    from ..output.results import json_text, put

    names = {
        one.program: component.name if str(call) == "forward" else f"{component.name}.{str(call).lstrip('_')}"
        for component in pipe.dovetail.components.values()
        for call in component.calls
        for made in call.programs.values()
        if isinstance(made, CompiledModule)
        for one in made.each
    }
    put(json_text(trace_of(slices_of(recording, names, speeds_rehearsed(pipe.dovetail.rig))), 2), file)


def _ms(seconds: float | None) -> str:
    """Milliseconds; of less than a microsecond, that."""
    if seconds is None:
        return "-"
    return f"{seconds * 1e3:.3f}" if seconds >= _LEAST or not seconds else "< 0.001"


def _times(ratio: float | None) -> str:
    """Measured over predicted to two digits; beyond a thousand the two do not describe the same."""
    if ratio is None:
        return "-"
    return f"{ratio:.2f}" if ratio < _MOST else f"> {_MOST}"
