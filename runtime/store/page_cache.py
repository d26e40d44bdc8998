"""Has the system read files into its page cache while the process imports, builds and plans.

Plain reads into one small buffer, on a thread of its own: ``posix_fadvise`` reads no more than a window at a time. What
is there already is not read, and where the files take more than a bound, nothing is: memory that others use would go.
"""

from __future__ import annotations

import contextlib
import logging
import os
import threading
from collections.abc import Iterable, Sequence
from pathlib import Path

logger = logging.getLogger(__name__)

_WINDOW = 4 * 2**20
_THREAD = "dovetail-page-cache"
_NOW = getattr(os, "RWF_NOWAIT", None)


def warm(files: Iterable[Path], most: int) -> threading.Thread | None:
    """Begins to read files, one after another, unless they have more than so many bytes; returns at once.

    The thread ends with the process, at an error of a file, or when all is read. Returns None where there is none: one
    is at work already, files are too large, or there are none.
    """
    found = [(path, size) for path in files if (size := _size(path))]
    total = sum(size for _, size in found)
    if not found or total > most or not hasattr(os, "preadv") or _is_at_work():
        return None
    logger.debug("reading %d files with %d bytes ahead", len(found), total)
    thread = threading.Thread(target=_read_all, args=(found,), name=_THREAD, daemon=True)
    thread.start()
    return thread


def _is_at_work() -> bool:
    return any(thread.name == _THREAD for thread in threading.enumerate())


def _size(path: Path) -> int:
    try:
        return path.stat().st_size
    except OSError:
        return 0


def _read_all(files: Sequence[tuple[Path, int]]) -> None:
    buffer = bytearray(_WINDOW)
    for path, size in files:
        with contextlib.suppress(OSError):  # whoever needs the file will say what is wrong
            _read(path, size, buffer)


def _read(path: Path, size: int, buffer: bytearray) -> None:
    file = os.open(path, os.O_RDONLY)
    try:
        read_uncached(file, 0, size, buffer)
    finally:
        os.close(file)


def read_uncached(file: int, start: int, end: int, buffer: bytearray | None = None) -> None:
    """Reads a range of an open file into the page cache, apart from what is there; does nothing where none can tell.

    Args:
        file: its descriptor.
        start, end: the range in bytes.
        buffer: is overwritten; one is made where it is needed.

    Raises OSError where the file cannot be read, or ends before the range does.
    """
    if not hasattr(os, "preadv"):
        return
    for at in range(start, end, _WINDOW):
        stop = min(at + _WINDOW, end)
        if not (_is_cached(file, at) and _is_cached(file, stop - 1)):
            buffer = buffer or bytearray(_WINDOW)
            _read_whole(file, at, memoryview(buffer)[: stop - at])


def _read_whole(file: int, at: int, memory: memoryview) -> None:
    """Fills memory with what stands at a place of a file; a read may give less than it was asked for."""
    while memory:
        count = os.preadv(file, [memory], at)
        if not count:
            raise OSError(f"it ends at byte {at}, {len(memory)} bytes too early")
        at, memory = at + count, memory[count:]


def _is_cached(file: int, at: int) -> bool:
    """Whether a byte is in the page cache; where the system cannot tell, it is not."""
    if _NOW is None:
        return False
    try:
        return os.preadv(file, [bytearray(1)], at, _NOW) == 1
    except OSError:
        return False
