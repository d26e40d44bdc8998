"""What a plan says of the modes that were chosen from: a line each, and the same as data."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ..compiler.durations import seconds_facts, seconds_text
from ..compiler.spec.modes import QUICKEST
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
        parts = f", {one.micro_batches} micro-batches" if one.micro_batches > 1 else ""
        mark = " (taken)" if one.is_taken else ""
        rows.append((name, one.mode + parts + mark, takes, " & ".join(map(str, one.devices))))
    return rows


def line_of_taken(taken: Sequence[Choice]) -> str:
    """Which modes were taken, in a line; nothing where none was to be found.

    >>> from dovetail.compiler.devices.device import Device
    >>> line_of_taken([Choice("unet", "layer", (Device("cuda"), Device("cuda", 1)), 1.0, "", True, 2)])
    '`--split-mode auto` took layer, in 2 micro-batches, for unet (cuda0 & cuda1)'
    """

    def way(one: Choice) -> str:
        parts = f", in {one.micro_batches} micro-batches," if one.micro_batches > 1 else ""
        return f"{one.mode}{parts} for {one.component} ({' & '.join(map(str, one.devices))})"

    return f"`--split-mode {QUICKEST}` took {'; '.join(map(way, taken))}" if taken else ""


def facts_of_choices(choices: Sequence[Choice], spread: float) -> list[dict[str, Any]]:
    """The same as data: seconds with the ends of their range."""
    return [
        {
            "component": one.component,
            "mode": one.mode,
            "taken": one.is_taken,
            **({"why_not": one.why} if one.seconds is None else seconds_facts(one.seconds, spread)),
            **({"micro_batches": one.micro_batches} if one.micro_batches > 1 else {}),
            "devices": [device.name for device in one.devices],
        }
        for one in choices
    ]
