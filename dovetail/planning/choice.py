"""What a plan says of the modes that were chosen from: a line each, and the same as data."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ..compiler.durations import seconds_text
from ..passes.fit.choices import Choice

HEAD_OF_CHOICES = ("component", "split mode", "a picture takes", "devices")
RIGHT_OF_CHOICES: tuple[int, ...] = ()


def rows_of_choices(choices: Sequence[Choice], spread: float) -> list[tuple[str, ...]]:
    """A row of text for each mode, under HEAD_OF_CHOICES: seconds, or why it cannot be; the one that was taken is said.

    ``spread`` is the part of seconds that they may be off by.
    """
    rows: list[tuple[str, ...]] = []
    before = ""
    for one in choices:
        name = one.component if one.component != before else ""
        before = one.component
        takes = one.why if one.seconds is None else f"{seconds_text(one.seconds, spread)} s"
        mark = " (taken)" if one.is_taken else ""
        rows.append((name, one.mode + mark, takes, " & ".join(map(str, one.devices))))
    return rows


def facts_of_choices(choices: Sequence[Choice]) -> list[dict[str, Any]]:
    """The same as data."""
    return [
        {
            "component": one.component,
            "mode": one.mode,
            "taken": one.is_taken,
            **({"why_not": one.why} if one.seconds is None else {"seconds": round(one.seconds, 3)}),
            "devices": [device.name for device in one.devices],
        }
        for one in choices
    ]
