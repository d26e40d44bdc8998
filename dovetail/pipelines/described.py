"""A compiled pipeline in words: as lines of text, and as a table for notebooks."""

from __future__ import annotations

from collections.abc import Iterator
from html import escape
from typing import TYPE_CHECKING

from ..compiler.spec.residency import Residency
from ..compiler.spec.units import format_bytes

if TYPE_CHECKING:
    from .placed import PlacedPipeline


def as_text(pipeline: PlacedPipeline) -> str:
    """A line for the pipeline and one for each component: its devices, where its weights rest, what is compiled."""
    lines = [_title(pipeline)]
    for name, role, where, rests, programs in _rows(pipeline):
        lines.append(f"  {name} ({role}): {where}{rests and ', ' + rests}, {programs} programs")
    return "\n".join(lines)


def as_html(pipeline: PlacedPipeline) -> str:
    """The same as an HTML table."""
    head = "".join(f"<th>{one}</th>" for one in ("component", "role", "devices", "", "programs"))
    rows = "".join(f"<tr>{''.join(f'<td>{escape(cell)}</td>' for cell in row)}</tr>" for row in _rows(pipeline))
    return f"<table><caption>{escape(_title(pipeline))}</caption><tr>{head}</tr>{rows}</table>"


def _title(pipeline: PlacedPipeline) -> str:
    return f"{pipeline.name} on {', '.join(map(str, pipeline.rig))}"


def _rows(pipeline: PlacedPipeline) -> Iterator[tuple[str, str, str, str, str]]:
    """Name, role, devices, how it runs, and the number of programs of each component."""
    for name, one in pipeline.components.items():
        kept = one.view.residency
        stays = one.view.amounts.on_device
        rests = f"weights rest on {kept.value}" if kept is not Residency.DEVICE else ""
        rests += f", {format_bytes(stays)} of them on its devices" if stays else ""
        by_parts = "by its parts" if one.parts.reasons else ""
        how = ", ".join(filter(None, (rests, by_parts)))
        yield name, one.role, " & ".join(map(str, one.devices)), how, str(len(one.programs))
