"""A plan for people, as the rows of a table, and for machines, as JSON takes it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ..compiler.spec.devices import Device
from ..compiler.spec.units import format_bytes
from ..passes.fit.plan import PlacedComponent, Plan, Share
from .asked import where_resting

HEAD = ("component", "device", "what of it", "weights", "activations", "streamed", "rests in", "seconds")
RIGHT = (3, 4, 5, 7)


def rows_of(plan: Plan) -> list[tuple[str, ...]]:
    """A row for each device of each component; its seconds are those of a picture, bringing included."""
    return [_row(one, share, share is one.shares[0]) for one in plan.components for share in one.shares]


def _row(one: PlacedComponent, share: Share, is_first: bool) -> tuple[str, ...]:
    return (
        one.name if is_first else "",
        str(share.device),
        _what(one, share),
        format_bytes(share.weights),
        format_bytes(share.values),
        format_bytes(share.streamed) if share.streamed else "-",
        where_resting(one.residency) or str(share.device),
        seconds_text(one.seconds) if is_first else "",
    )


def seconds_text(seconds: float) -> str:
    """Seconds to three digits.

    >>> seconds_text(123.4), seconds_text(0.01234)
    ('123', '0.0123')
    """
    return f"{seconds:.0f}" if seconds >= 100 else f"{seconds:.3g}"


def _what(one: PlacedComponent, share: Share) -> str:
    start, end = share.blocks
    tiles = ", in tiles" if one.tiled else ""
    if end - start == one.of:
        return f"all{tiles}"
    rest = " and the rest" if share is one.shares[0] else ""
    return f"blocks {start} to {end - 1}{rest}{tiles}" if end > start else f"all but blocks{tiles}"


def device_rows(plan: Plan, total: Mapping[Device, int]) -> list[tuple[str, ...]]:
    """A row for each device: what it has at most, in which phase, and what may be used of it."""
    rows: list[tuple[str, ...]] = []
    for device, peak in plan.peak.items():
        phase = max((nbytes, phase) for (phase, one), nbytes in plan.peaks.items() if one == device)[1]
        rows.append(
            (str(device), format_bytes(peak), phase, format_bytes(plan.budgets[device]), format_bytes(total[device]))
        )
    return rows


def facts(plan: Plan, searched: float) -> dict[str, Any]:
    """The plan as JSON takes it; sizes in bytes."""
    return {
        "seconds": round(plan.seconds, 3),
        "search_seconds": round(searched, 3),
        "options": dict(plan.settings),
        "components": {one.name: _facts(one) for one in plan.components},
        "peak_bytes": {str(device): nbytes for device, nbytes in plan.peak.items()},
        "peak_bytes_by_phase": _by_phase(plan),
        "budget_bytes": {str(device): nbytes for device, nbytes in plan.budgets.items()},
        "notes": list(plan.notes),
    }


def _by_phase(plan: Plan) -> dict[str, dict[str, int]]:
    phases = dict.fromkeys(phase for phase, _ in plan.peaks)
    return {
        phase: {str(device): nbytes for (one, device), nbytes in plan.peaks.items() if one == phase} for phase in phases
    }


def _facts(one: PlacedComponent) -> dict[str, Any]:
    return {
        "role": one.role,
        "phase": one.phase,
        "rests": one.residency.value,
        "tiled": one.tiled,
        "calls": one.times,
        "seconds": round(one.seconds, 3),
        "bringing_seconds": round(one.bringing, 3),
        "devices": [
            {
                "device": str(share.device),
                "blocks": list(share.blocks),
                "weight_bytes": share.weights,
                "streamed_bytes": share.streamed,
                "activation_bytes": share.values,
            }
            for share in one.shares
        ],
    }
