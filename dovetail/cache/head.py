"""The head of an entry on disk: its form, what it is of, and the lengths and the digest of what follows."""

from __future__ import annotations

import json
import os
import stat
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import BinaryIO

_FORM = b"dovetail trace 3\n"
ANSWERED, LOWERED = b"dovetail answer 2\n", b"dovetail program 2\n"
_LONGEST = 4096


class NoEntry(Exception):
    """A file is no entry, or a damaged one; or a program has no form on disk."""


@dataclass(frozen=True)
class Head:
    """What the first lines of an entry say: its key, the class that was traced, and how the rest is to be read."""

    key: str
    content: str
    name: str
    program: int
    tensors: int
    digest: str

    def __bytes__(self) -> bytes:
        return _FORM + json.dumps(asdict(self)).encode() + b"\n"


def open_entry(path: Path) -> BinaryIO:
    """Opens a file; raises NoEntry for what is no ordinary file, and OSError where it cannot be opened."""
    file = open(path, "rb", opener=lambda name, flags: os.open(name, flags | getattr(os, "O_NONBLOCK", 0)))  # noqa: SIM115
    if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
        file.close()
        raise NoEntry("it is no ordinary file")
    return file


def read_title(file: BinaryIO, form: bytes = ANSWERED) -> str:
    """What the second line of an entry of a form says that it is of; the file stands behind it then. Raises NoEntry."""
    if file.readline(len(form)) != form:
        raise NoEntry("it is of another form")
    try:
        return file.readline(_LONGEST).decode().removesuffix("\n")
    except UnicodeDecodeError as error:
        raise NoEntry("its title cannot be read") from error


def read_head(file: BinaryIO) -> Head:
    """The head of an open file, which stands behind it then. Raises NoEntry."""
    if file.readline(len(_FORM)) != _FORM:
        raise NoEntry("it is of another form")
    try:
        head = Head(**json.loads(file.readline(_LONGEST)))
    except (ValueError, TypeError, RecursionError) as error:
        raise NoEntry("its head cannot be read") from error
    if not all(isinstance(one, str) for one in (head.key, head.content, head.name, head.digest)):
        raise NoEntry("its head has other types")
    if not all(type(one) is int and 0 <= one < 2**40 for one in (head.program, head.tensors)):
        raise NoEntry("its head has no lengths")
    return head
