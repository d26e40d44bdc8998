"""A compiled pipeline in words: in one line, in a line each component, and as a table for notebooks."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from html import escape
from typing import TYPE_CHECKING

from ..compiler.durations import seconds_text
from ..compiler.spec.residency import Residency
from ..compiler.units import counted, format_bytes

if TYPE_CHECKING:
    from ..planning.table import Account
    from .placed import PlacedPipeline

_KEPT = {Residency.DEVICE: "", Residency.HOST: "RAM", Residency.DISK: "disk"}


def as_line(pipeline: PlacedPipeline) -> str:
    """One line: what it is, where it runs, and how much of it is compiled."""
    parts = pipeline.components
    if not parts:
        return f"<CompiledPipeline: a {pipeline.name} that was undone>"
    where = ", ".join(dict.fromkeys(str(device) for one in parts.values() for device in one.devices))
    programs = counted(sum(len(one.programs) for one in parts.values()), "program")
    return f"<CompiledPipeline: {pipeline.name} on {where}, {counted(len(parts), 'component')}, {programs} so far>"


def as_text(pipeline: PlacedPipeline) -> str:
    """A line for the pipeline and one for each component: its devices, where its weights are kept, what is compiled."""
    lines = [_title(pipeline)]
    for name, role, where, _, kept, how, programs in _rows(pipeline):
        told = ", ".join(filter(None, (where, kept and f"weights kept in {kept}", how, programs)))
        lines.append(f"  {name} ({role}): {told}")
    return "\n".join(lines)


def as_html(pipeline: PlacedPipeline, account: Account | None = None) -> str:
    """The same as an HTML table with the bytes of weights; of a planned call its seconds, and the peaks of devices."""
    title = _title(pipeline)
    if account is not None:
        title += f": a picture takes {seconds_text(account.seconds)} s {account.once}"
    head = ("component", "role", "devices", "weights", "kept in", "", "compiled")
    tables = [_table(title, head, list(_rows(pipeline)))]
    if account is not None:
        peaks = [
            (name, format_bytes(one["peak"]), format_bytes(one["free"]), one["at"])
            for name, one in account.devices().items()
        ]
        tables.append(_table("", ("device", "peak", "may use", "fullest at"), peaks))
    return "".join(tables)


def _table(title: str, head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    caption = f"<caption>{escape(title)}</caption>" if title else ""
    heads = "".join(f"<th>{one}</th>" for one in head)
    cells = "".join(f"<tr>{''.join(f'<td>{escape(cell)}</td>' for cell in row)}</tr>" for row in rows)
    return f"<table>{caption}<tr>{heads}</tr>{cells}</table>"


def _title(pipeline: PlacedPipeline) -> str:
    return f"{pipeline.name} on {', '.join(map(str, pipeline.rig))}"


def _rows(pipeline: PlacedPipeline) -> Iterator[tuple[str, str, str, str, str, str, str]]:
    """Name, role, devices, bytes of weights, where these are kept, how it runs, and how much is compiled, of each."""
    for name, one in pipeline.components.items():
        how = "by its parts" if one.parts.reasons else f"split by {one.plan.mode}" if one.plan.places_itself else ""
        devices, weights = " & ".join(map(str, one.devices)), format_bytes(one.view.nbytes)
        stays, kept = one.view.amounts.on_device, _KEPT[one.view.residency]
        kept += f", {format_bytes(stays)} of them on its devices" if stays else ""
        programs = counted(len(one.programs), "program")
        yield name, one.role, devices, weights, kept, how, programs
