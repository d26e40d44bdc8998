"""What commands print and write: results on stdout, files whole or not at all."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from ...compiler.atomic_write import written_beside
from ...compiler.errors import DovetailError, UsageError
from .tables import table_text


def print_json(document: Any) -> None:
    """Prints one JSON document; characters that a terminal would obey are written as JSON escapes them."""
    print(json_text(document))


def json_text(document: Any, depth: int | None = None) -> str:
    """One JSON document for a terminal; what lies deeper than ``depth`` stands on one line."""
    text = json.dumps(document, indent=2, ensure_ascii=False) if depth is None else _lines(document, depth)
    return "".join(one if one.isprintable() or one == "\n" else json.dumps(one)[1:-1] for one in text)


def _lines(value: Any, depth: int, indent: str = "") -> str:
    if not depth or not value or not isinstance(value, (dict, list)):
        return json.dumps(value, ensure_ascii=False)
    inner = indent + "  "
    if isinstance(value, dict):
        items = [f"{inner}{json.dumps(key)}: {_lines(one, depth - 1, inner)}" for key, one in value.items()]
        return "{\n" + ",\n".join(items) + f"\n{indent}}}"
    return "[\n" + ",\n".join(inner + _lines(one, depth - 1, inner) for one in value) + f"\n{indent}]"


def print_table(
    head: Sequence[str], rows: Sequence[Sequence[str]], right: Sequence[int] = (), whole: Sequence[int] = ()
) -> None:
    """Prints columns two blanks apart, so that `awk`, `grep` and people can read them.

    ``right`` ones are aligned so, and ``whole`` ones are never wrapped.
    """
    print(table_text(head, rows, right, whole))


__all__ = ["check_writable", "json_text", "print_json", "print_table", "put", "put_page", "table_text"]


def put(text: str, output: Path | None = None) -> None:
    """Prints a text, or writes it to a file, whole or not at all; raises DovetailError where that cannot be."""
    if output is None:
        print(text.removesuffix("\n"))
        return
    try:
        with written_beside(output) as draft:
            draft.write_text(text.removesuffix("\n") + "\n", encoding="utf-8")
    except OSError as error:
        raise DovetailError(f"cannot write {output}: {error.strerror}: name a file in a folder with room") from error


def is_terminal() -> bool:
    """Whether somebody reads what is printed."""
    return sys.stdout.isatty()


def put_page(text: str, output: Path | None = None) -> None:
    """Writes a page to a file, or prints it for another program; on a terminal it opens it, and prints its file."""
    if output is not None or not is_terminal():
        put(text, output)
        return
    from ...draw.page.browser import open_page

    print(open_page(text))


def check_writable(path: Path) -> None:
    """Raises UsageError, before any work is done, when a file cannot be written there."""
    if path.is_dir():
        raise UsageError(f"cannot write {path}: it is a folder; name a file in it")
    if Path("/dev") in path.absolute().parents or (path.exists() and not path.is_file()):
        raise UsageError(f"cannot write {path}: it is no file, which would take its place; leave it out to print")
    if not path.absolute().parent.is_dir():
        raise UsageError(f"cannot write {path}: there is no folder {path.parent}")
    if not os.access(path.absolute().parent, os.W_OK):
        raise UsageError(f"cannot write {path}: the folder {path.parent} cannot be written to")
