"""Tables of text that fit a terminal of 80 columns."""

from __future__ import annotations

import re
import shutil
import sys
import textwrap
from collections.abc import Sequence

from ...compiler.printable import printable

WIDTH = 80
_GAP = "  "
_SIZE = re.compile(r"(<?-?\d+(?:\.\d+)?) ([KMGT])iB")
_WORDS, _WITHIN = re.compile(r"\s*\S+"), re.compile(r"\s*(?:[^\s_.]|[_.](?=[0-9]))*[_.]*")
_STAGES = (10, _WORDS), (6, _WORDS), (6, _WITHIN)
"""The characters that are left of a column at least, and where it is wrapped: between words, then within names too."""


def width() -> int:
    """The columns of the terminal that a table is printed to, 80 where it goes elsewhere."""
    return max(WIDTH, shutil.get_terminal_size((WIDTH, 24)).columns) if sys.stdout.isatty() else WIDTH


def table_text(
    head: Sequence[str], rows: Sequence[Sequence[str]], right: Sequence[int] = (), whole: Sequence[int] = ()
) -> str:
    """Columns two blanks apart, a line each row; ``right`` ones are aligned so.

    What is too wide is made narrower until it fits: words of the head stand below one another, then `16.0 GiB` is
    `16.0G`, which is how sizes may be typed too, then columns of words are wrapped, the widest first. What stands in a
    ``whole`` column, such as a path, is to be copied: it is never wrapped, and makes no other column narrower.
    """
    cells = [[printable(cell) for cell in row] for row in rows]
    most = width() + sum(_widest([head, *cells], column) + len(_GAP) for column in whole)
    table: list[list[str]] = [list(head), *cells]
    if _total(table) > most:
        table = [_wrapped_head(head, cells), *cells]
    if _total(table) > most:
        short = [[cell if at in whole else _SIZE.sub(r"\1\2", cell) for at, cell in enumerate(row)] for row in cells]
        table = [_wrapped_head(head, short), *short]
    for least, pieces in _STAGES:
        for _ in head:
            table = _narrowed(table, most, (*right, *whole), least, pieces)
    return "\n".join(_lines(table, right))


def _wrapped_head(head: Sequence[str], rows: Sequence[Sequence[str]]) -> list[str]:
    """The head with its words below one another where the cells below are narrower."""
    return ["\n".join(_words(one, _widest(rows, column))) for column, one in enumerate(head)]


def _words(text: str, least: int) -> list[str]:
    """The words of a heading in lines as wide as its longest word, or as the cells below."""
    most = max([least, *map(len, text.split())])
    return textwrap.wrap(text, most, break_long_words=False, break_on_hyphens=False) or [text]


def _narrowed(
    table: Sequence[Sequence[str]], most: int, fixed: Sequence[int], least: int, pieces: re.Pattern[str]
) -> list[list[str]]:
    """The table with its widest column that is not ``fixed`` made narrower by as much as the table is too wide."""
    over = _total(table) - most
    words = [column for column in range(len(table[0])) if column not in fixed]
    bounds = {column: max(least, *(_longest(row[column], pieces) for row in table)) for column in words}
    wide = [column for column in words if _widest(table, column) > bounds[column]]
    if over <= 0 or not wide:
        return [list(row) for row in table]
    column = max(wide, key=lambda one: _widest(table, one))
    room = max(bounds[column], _widest(table, column) - over)
    return [[_wrapped(cell, room, pieces) if at == column else cell for at, cell in enumerate(row)] for row in table]


def _longest(cell: str, pieces: re.Pattern[str]) -> int:
    return max((len(piece.strip()) for piece in pieces.findall(cell)), default=0)


def _wrapped(cell: str, room: int, pieces: re.Pattern[str]) -> str:
    """A cell in lines of so many characters, as none of its pieces is longer."""
    lines = [""]
    for piece in pieces.findall(cell.replace("\n", " ")):
        if len(lines[-1] + piece) <= room or not lines[-1]:
            lines[-1] += piece
        else:
            lines.append(piece.lstrip())
    return "\n".join(lines)


def _lines(table: Sequence[Sequence[str]], right: Sequence[int]) -> list[str]:
    widths = [_widest(table, column) for column in range(len(table[0]))]
    lines = []
    for row in table:
        parts = [cell.split("\n") for cell in row]
        for at in range(max(map(len, parts))):
            cells = [part[at] if at < len(part) else "" for part in parts]
            sized = zip(cells, widths, strict=True)
            lines.append(_GAP.join(c.rjust(w) if i in right else c.ljust(w) for i, (c, w) in enumerate(sized)).rstrip())
    return lines


def _widest(table: Sequence[Sequence[str]], column: int) -> int:
    return max((len(line) for row in table for line in row[column].split("\n")), default=0)


def _total(table: Sequence[Sequence[str]]) -> int:
    return sum(_widest(table, column) for column in range(len(table[0]))) + len(_GAP) * (len(table[0]) - 1)
