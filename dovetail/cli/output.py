"""What commands print and write: results on stdout, progress on stderr, files whole or not at all."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..compiler.errors import UsageError
from ..compiler.printable import printable

if TYPE_CHECKING:
    from rich.progress import Progress


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


@contextmanager
def progress(title: str, total: int | None = None, describe: Callable[[], str] = str) -> Iterator[Progress]:
    """A bar of `total` steps on stderr, or a spinner, which disappears when the work is done.

    Args:
        title: what it says goes on.
        total: how many steps there are.
        describe: is asked again and again for what goes on now; the title stands where that is empty.
    """
    from rich.console import Console
    from rich.progress import (
        BarColumn,
        MofNCompleteColumn,
        Progress,
        ProgressColumn,
        SpinnerColumn,
        Task,
        TimeElapsedColumn,
    )
    from rich.text import Text

    class Description(ProgressColumn):
        def render(self, task: Task) -> Text:
            return Text(describe() or task.description)

    steps = (BarColumn(), MofNCompleteColumn()) if total else ()
    columns = (SpinnerColumn(), Description(), *steps, TimeElapsedColumn())
    console = Console(file=sys.stderr)
    with Progress(*columns, console=console, transient=True, disable=not console.is_terminal) as bar:
        bar.add_task(title, total=total)
        yield bar


def check_writable(path: Path) -> None:
    """Raises UsageError, before any work is done, when a file cannot be written there."""
    if path.is_dir():
        raise UsageError(f"cannot write {path}: it is a folder; name a file in it")
    if not path.absolute().parent.is_dir():
        raise UsageError(f"cannot write {path}: there is no folder {path.parent}")
    if not os.access(path.absolute().parent, os.W_OK):
        raise UsageError(f"cannot write {path}: the folder {path.parent} cannot be written to")
