"""The folder of kept entries: where it is, what is in it, and that it stays below a size."""

from __future__ import annotations

import os
import re
import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

from ..compiler.atomic_write import written_beside
from ..compiler.errors import SpecError
from ..compiler.units import parse_bytes
from .head import ANSWERED, LOWERED, NoEntry, open_entry, read_head, read_title
from .trust import doubt

SWITCH, PLACE, SIZE = "DOVETAIL_CACHE", "DOVETAIL_CACHE_DIR", "DOVETAIL_CACHE_SIZE"
"""Environment variables: 0 switches the cache off; where it is; and how large it may grow."""

TRACE, ANSWER, PROGRAM = "trace", "answer", "program"
"""The kinds of entries, which are the endings of their files."""

_SIZE, _EXAMPLE = "512MiB", "a number and a unit, such as 512MiB"
_ENTRY, _DRAFT = re.compile(r"[0-9a-f]{40}"), re.compile(r"\.[0-9a-f]{16}\.[0-9a-f]{40}")
_ABANDONED = 3600.0
"""Seconds after which a draft is what a process left that was killed."""


@dataclass(frozen=True)
class Entry:
    """A file of the cache: its key, its size in bytes, and when it was used last, in seconds since the epoch."""

    key: str
    path: Path
    nbytes: int
    used: float

    @property
    def kind(self) -> str:
        """Whether it is a TRACE, an ANSWER or a PROGRAM."""
        return self.path.suffix.removeprefix(".")


def name_of(entry: Entry) -> str:
    """What an entry is of: the class that was traced or placed, or the command that was answered; empty if damaged."""
    try:
        with open_entry(entry.path) as file:
            if entry.kind == TRACE:
                return read_head(file).name
            return read_title(file, LOWERED if entry.kind == PROGRAM else ANSWERED)
    except (OSError, NoEntry):
        return ""


def is_on() -> bool:
    """Whether traces, programs and answers are kept and taken."""
    return os.environ.get(SWITCH, "1") not in ("0", "no", "off", "false")


def place() -> Path:
    """The folder of the cache, which may not be there yet."""
    named = os.environ.get(PLACE)
    if named:
        return Path(named).expanduser()
    home = os.environ.get("XDG_CACHE_HOME") or ""
    return (Path(home) if os.path.isabs(home) else Path("~/.cache").expanduser()) / "dovetail"


def why_not_believed() -> str:
    """Why what is in the folder is neither read nor added to, with the way out; empty where it is, or is not there."""
    try:
        return doubt(place().stat(), place())
    except OSError:
        return ""


def limit() -> int:
    """The bytes that all entries may take together; raises SpecError where the variable is no size."""
    given = os.environ.get(SIZE) or _SIZE
    try:
        return parse_bytes(given)
    except SpecError as error:
        raise SpecError(
            f"{SIZE} says how large the cache may grow: {error.problem}", given, 0, len(given), _EXAMPLE
        ) from error


def entries() -> list[Entry]:
    """What is kept, used last first."""
    return sorted(_entries(), key=lambda one: -one.used)


def path_of(key: str, kind: str = TRACE) -> Path:
    """Where the entry of a key is, or would be."""
    return place() / f"{key}.{kind}"


def touch(key: str, kind: str = TRACE) -> None:
    """Notes that an entry was used now."""
    try:
        os.utime(path_of(key, kind))
    except OSError:  # it is gone by now, or the folder is somebody else's
        return


def write(key: str, parts: Iterable[bytes], most: int, kind: str = TRACE) -> None:
    """Writes an entry, whole or not at all, and lets those go that were used longest ago. Raises OSError."""
    make(place())
    with written_beside(path_of(key, kind)) as draft:
        draft.chmod(0o600)
        with draft.open("wb") as file:
            file.writelines(parts)
    shrink(most)


def shrink(most: int) -> None:
    """Lets go of what was used longest ago, until the entries take no more than some bytes; of abandoned drafts too."""
    total = 0
    for entry in entries():
        total += entry.nbytes
        if total > most:
            entry.path.unlink(missing_ok=True)
    for draft in _files(_DRAFT):
        if time.time() - _used(draft) > _ABANDONED:
            draft.unlink(missing_ok=True)


def clear() -> tuple[int, int]:
    """Removes all entries; returns their number and bytes. Raises OSError where one cannot be removed."""
    found = entries()
    for entry in found:
        entry.path.unlink(missing_ok=True)
    for draft in _files(_DRAFT):
        draft.unlink(missing_ok=True)
    return len(found), sum(entry.nbytes for entry in found)


def make(folder: Path) -> None:
    """Makes a folder with those that it lies in, for this user alone. Raises OSError."""
    if not folder.is_dir():
        make(folder.parent)
        folder.mkdir(mode=0o700, exist_ok=True)


def _files(name: re.Pattern[str]) -> Iterator[Path]:
    """The files of ours whose names are of a form; what else lies in the folder is somebody's own."""
    for kind in (TRACE, ANSWER, PROGRAM):
        yield from (one for one in place().glob(f"*.{kind}") if name.fullmatch(one.stem) and one.is_file())


def _entries() -> Iterator[Entry]:
    for path in _files(_ENTRY):
        try:
            found = path.stat()
        except OSError:  # another process has removed it
            continue
        yield Entry(path.stem, path, found.st_size, found.st_mtime)


def _used(path: Path) -> float:
    try:
        return path.stat().st_mtime
    except OSError:
        return time.time()
