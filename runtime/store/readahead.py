"""Has the system read ranges of files ahead, on a thread of its own.

Linux reads no more than one window of readahead for a call (often 128 KiB), so a range is asked for in steps of that
size; for a gigabyte that is thousands of calls, each of which may wait for the disk.
"""

from __future__ import annotations

import contextlib
import os
import queue
import threading
from typing import TYPE_CHECKING

from ..devices.fork import renew_after_fork

if TYPE_CHECKING:
    from .opened_file import OpenedFile

_STEP = 128 * 2**10


class ReadAhead:
    """A queue of ranges of files, and the thread that asks the system for them; it ends when nothing is left."""

    def __init__(self) -> None:
        self.renew()
        renew_after_fork(self)

    def renew(self) -> None:
        """Forgets the thread and what it was asked for."""
        self._asked: queue.SimpleQueue[tuple[OpenedFile, int, int]] = queue.SimpleQueue()
        self._lock = threading.Lock()
        self._thread: threading.Thread | None = None

    def ask(self, file: OpenedFile, start: int, end: int) -> None:
        """Has a range read ahead; returns at once."""
        if not hasattr(os, "posix_fadvise"):
            return
        with self._lock:
            self._asked.put((file, start, end))
            if self._thread is None:
                self._thread = threading.Thread(target=self._work, name="dovetail-read-ahead", daemon=True)
                self._thread.start()

    def finish(self) -> None:
        """Waits until the system has been asked for all ranges."""
        thread = self._thread
        if thread is not None:
            thread.join()

    def _work(self) -> None:
        while True:
            with self._lock:
                if self._asked.empty():
                    self._thread = None
                    return
            file, start, end = self._asked.get()
            with contextlib.suppress(OSError):  # advice that the file's system does not take
                for at in range(start, end, _STEP):
                    file.will_need(at, min(at + _STEP, end))
            del file


READ_AHEAD = ReadAhead()
