"""How many bytes of files were read, for whoever shows progress."""

from __future__ import annotations

import threading

from ..devices.fork import renew_after_fork


class ByteCounter:
    """Counts bytes, from any thread."""

    def __init__(self) -> None:
        self.nbytes = 0
        self.renew()
        renew_after_fork(self)

    def renew(self) -> None:
        """Makes its lock anew, in a process that was forked."""
        self._lock = threading.Lock()

    def add(self, nbytes: int) -> None:
        """Counts so many more."""
        with self._lock:
            self.nbytes += nbytes


READ = ByteCounter()
"""What was read of files of weights in this process, apart from what views of them show."""
