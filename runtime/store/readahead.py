"""Has the system read ranges of files ahead, on a thread of its own.

Linux reads no more than one window of readahead for a call (often 128 KiB), so a range is asked for in steps of that
size; for a gigabyte that is thousands of calls, each of which may wait for the disk.
"""

from __future__ import annotations

import contextlib
import threading
from functools import partial
from typing import TYPE_CHECKING

from .lane import Lane

if TYPE_CHECKING:
    from .opened_file import OpenedFile

_STEP = 128 * 2**10
_LANE = Lane("dovetail-read-ahead")


def read_ahead(file: OpenedFile, start: int, end: int) -> None:
    """Has a range of a file read ahead; returns at once."""
    _LANE.submit(partial(_ask, file, start, end))


def finish() -> None:
    """Waits until the system has been asked for all ranges."""
    done = threading.Event()
    _LANE.submit(done.set)
    done.wait()


def _ask(file: OpenedFile, start: int, end: int) -> None:
    with contextlib.suppress(OSError):  # advice that the file's system does not take
        for at in range(start, end, _STEP):
            file.will_need(at, min(at + _STEP, end))
