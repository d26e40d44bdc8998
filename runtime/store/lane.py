"""The thread that brings weights to one device while the device computes: one load after another, in order."""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable
from functools import cache

import torch

from ..devices.fork import renew_after_fork

_IDLE = 1.0  # seconds after which a thread without work ends


class Lane:
    """Does jobs one after another, in the order in which they were given, on a thread of its own."""

    def __init__(self, name: str) -> None:
        self._name = name
        self.renew()
        renew_after_fork(self)

    def renew(self) -> None:
        """Forgets the thread and its jobs, in a process that was forked."""
        self._jobs: queue.Queue[Callable[[], None]] = queue.Queue()
        self._lock = threading.Lock()
        self._thread: threading.Thread | None = None

    def submit(self, job: Callable[[], None]) -> None:
        """Has a job done, which must not raise; returns at once. Raises RuntimeError where no thread can be started."""
        with self._lock:
            if self._thread is None:
                thread = threading.Thread(target=self._work, name=self._name, daemon=True)
                thread.start()
                self._thread = thread
            self._jobs.put(job)

    def _work(self) -> None:
        while True:
            try:
                job = self._jobs.get(timeout=_IDLE)
            except queue.Empty:
                with self._lock:
                    if not self._jobs.empty():
                        continue
                    if self._thread is threading.current_thread():
                        self._thread = None
                    return
            job()
            del job


@cache
def lane_of(device: torch.device) -> Lane:
    """The lane of a device."""
    return Lane(f"dovetail-lane-{device}")
