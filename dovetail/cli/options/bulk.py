"""The options that have a list of prompts be painted, by one process or by several."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import typer

from ...compiler.errors import UsageError

BULK = "Many pictures"
AUTOMATIC = "auto"
_MOST = 64


@dataclass(frozen=True)
class Bulk:
    """A list of prompts, and how many processes share it, as it was typed."""

    prompts_file: Annotated[
        Path | None,
        typer.Option(
            "--prompts-file",
            metavar="FILE",
            help="Generate a picture for each line: all prompts, or all JSON with prompt, size, seed, loras.",
            rich_help_panel=BULK,
        ),
    ] = None
    replicas: Annotated[
        str,
        typer.Option(
            "--replicas",
            metavar="N|auto",
            help="Share the lines among N processes, each with a whole copy on its part of the devices.",
            rich_help_panel=BULK,
        ),
    ] = ""

    def check(self) -> None:
        """Raises UsageError for replicas without a list, and for what is no number of them."""
        count_of(self.replicas)
        if self.replicas and self.prompts_file is None:
            raise UsageError(
                "--replicas shares a list of prompts among processes: give one, --prompts-file FILE, or leave it out"
            )


def count_of(text: str) -> int | None:
    """How many replicas were asked for; None for ``auto`` and where nothing was.

    Raises UsageError for anything else.
    """
    if text in ("", AUTOMATIC):
        return None
    if not text.isascii() or not text.isdecimal() or not 1 <= int(text[:9]) <= _MOST:
        raise UsageError(f"--replicas {text[:40]} is no number of processes: give 1 to {_MOST}, or {AUTOMATIC}")
    return int(text[:9])
