"""`dovetail compile`: plan files for a pipeline's components."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from ...compiler.errors import UsageError
from ...compiler.units import format_bytes
from ..opening.parts import wanted
from ..options.call import Sample
from ..options.shared import Debug, Dtype, Json, Where
from ..options.source import Source
from ..options.subject import Component, Subject
from ..options.weights import WeightFiles
from ..output.results import check_writable, print_json, print_table

if TYPE_CHECKING:
    from collections.abc import Mapping

    from ...compiler.ir.program import Program
    from ...components.compiled import CompiledModule

Output = Annotated[
    Path | None,
    typer.Option("-o", "--output", metavar="PATH", help="A plan file for one component, a folder for several."),
]


def compile(
    where: Where,
    sample: Sample,
    weights: WeightFiles,
    source: Source,
    subject: Subject = "",
    component: Component = "",
    dtype: Dtype = None,
    output: Output = None,
    json: Json = False,
    debug: Debug = False,
) -> None:
    """Compile a pipeline's components for given devices, and keep the plans.

    Nothing is computed: a plan can be made for a machine that is not this one. Without -o it says what the plans are.
    """
    if output is not None and output.suffix:
        check_writable(output)
    from ...cache.traces import collected

    with collected() as traces:
        parts = wanted(subject, component, where, sample, weights, source, dtype).parts(
            in_one_step=True, rests_in_files=False
        )
    files = _save(parts, output, traces) if output else {}
    if json:
        print_json({name: _facts(part, files.get(name)) for name, part in parts.items()})
        return
    rows = [_row(name, part) + ((str(files[name]),) if files else ()) for name, part in parts.items()]
    head = ("component", "devices", "segments", "weights", "crosses", *(("plan",) if files else ()))
    print_table(head, rows, right=(2, 3, 4), whole=(5,) if files else ())


def _save(parts: dict[str, CompiledModule], output: Path, traces: Mapping[Program, bytes]) -> dict[str, Path]:
    if output.suffix and len(parts) > 1:
        raise UsageError(
            f"{output} is one file, and there are {len(parts)} plans ({', '.join(parts)}): "
            "name a folder, or one --component"
        )
    if output.suffix:
        files = dict.fromkeys(parts, output)
    else:
        _make_folder(output)
        files = {name: output / f"{name}.json" for name in parts}
    for name, part in parts.items():
        part.save(files[name], name)
        _save_trace(files[name], traces.get(part.base) if part.base else None)
    return files


def _save_trace(plan: Path, trace: bytes | None) -> None:
    """Writes the trace of a plan beside it, so that a pipeline need not trace; none where it has no such form."""
    from ...compiler.atomic_write import written_beside
    from ...plans.folder import TRACE

    if trace is None:
        plan.with_suffix(TRACE).unlink(missing_ok=True)
        return
    with written_beside(plan.with_suffix(TRACE)) as draft:
        draft.write_bytes(trace)


def _make_folder(folder: Path) -> None:
    try:
        folder.mkdir(exist_ok=True)
    except OSError as error:
        raise UsageError(f"cannot make the folder {folder}: {error.strerror}") from error


def _crossing_bytes(part: CompiledModule) -> int:
    from ...compiler.states.parts import crossing_bytes

    return crossing_bytes(part.program)


def _weights(part: CompiledModule) -> dict[str, int]:
    """The bytes of weights that rest on each device."""
    from ...compiler.states.parts import bytes_held

    return {device.name: nbytes for device, nbytes in bytes_held(part.program).items()}


def _row(name: str, part: CompiledModule) -> tuple[str, ...]:
    weights = " + ".join(format_bytes(nbytes) for nbytes in _weights(part).values())
    weights += f" from {part.program.kept.value}" if part.program.residency else ""
    devices = " & ".join(device.name for device in part.program.devices)
    return name, devices, str(len(part.program.segments)), weights, format_bytes(_crossing_bytes(part))


def _facts(part: CompiledModule, file: Path | None) -> dict[str, object]:
    return {
        "class": part.program.name,
        "devices": [device.name for device in part.program.devices],
        "segments": len(part.program.segments),
        "weight_bytes": _weights(part),
        "weights_rest": part.program.kept.value if part.program.residency else None,
        "crossings": len(list(part.program.transfers())),
        "crossing_bytes": _crossing_bytes(part),
        "plan": str(file) if file else None,
    }
