"""What became of a line of a list of prompts."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from .prompts import Line


@dataclass(frozen=True)
class Result:
    """What became of a line: its files, or why there are none; and the seconds that it took."""

    line: Line
    files: Sequence[Path] = ()
    error: str = ""
    seconds: float = 0.0
    fatal: Exception | None = None
    """What hinders all lines: a picture cannot be written."""
