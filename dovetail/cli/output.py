"""What commands print and write: results on stdout, files whole or not at all."""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from ..compiler.errors import UsageError
from ..compiler.printable import printable


def print_json(document: Any) -> None:
    """Prints one JSON document; characters that a terminal would obey are written as JSON escapes them."""
    text = json.dumps(document, indent=2, ensure_ascii=False)
    print("".join(one if one.isprintable() or one == "\n" else json.dumps(one)[1:-1] for one in text))


def print_table(head: Sequence[str], rows: Sequence[Sequence[str]], right: Sequence[int] = ()) -> None:
    """Prints columns two blanks apart, so that `awk`, `grep` and people can read them; `right` ones are aligned so."""
    rows = [[printable(cell) for cell in row] for row in rows]
    widths = [max(len(row[column]) for row in (head, *rows)) for column in range(len(head))]
    for row in (head, *rows):
        cells = [
            cell.rjust(w) if i in right else cell.ljust(w) for i, (cell, w) in enumerate(zip(row, widths, strict=True))
        ]
        print("  ".join(cells).rstrip())


def check_writable(path: Path) -> None:
    """Raises UsageError, before any work is done, when a file cannot be written there."""
    if path.is_dir():
        raise UsageError(f"cannot write {path}: it is a folder; name a file in it")
    if not path.absolute().parent.is_dir():
        raise UsageError(f"cannot write {path}: there is no folder {path.parent}")
    if not os.access(path.absolute().parent, os.W_OK):
        raise UsageError(f"cannot write {path}: the folder {path.parent} cannot be written to")
