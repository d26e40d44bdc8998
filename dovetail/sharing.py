"""A lock that calls share, and that a change to what they use takes alone."""

from __future__ import annotations

import contextlib
import os
import threading
import weakref
from collections import Counter
from collections.abc import Iterator


class Sharing:
    """Any number of threads share it, or one has it alone; a thread that has it may enter again.

    Whoever wants it alone goes before those who come to share it later. In a forked child nobody has it.
    """

    def __init__(self) -> None:
        self._changed = threading.Condition(threading.Lock())
        self._sharing: Counter[int] = Counter()
        self._alone: Counter[int] = Counter()
        self._waiting = 0
        _ALL.add(self)

    @contextlib.contextmanager
    def shared(self) -> Iterator[None]:
        """Has it together with others; waits while another thread has it alone, or waits for that."""
        mine = threading.get_ident()
        with self._changed:
            while not self._may_share(mine):
                self._changed.wait()
            self._sharing[mine] += 1
        try:
            yield
        finally:
            self._leave(self._sharing, mine)

    @contextlib.contextmanager
    def alone(self) -> Iterator[None]:
        """Has it alone; waits until no other thread has it."""
        mine = threading.get_ident()
        with self._changed:
            self._waiting += 1
            try:
                while self._others(mine):
                    self._changed.wait()
                self._alone[mine] += 1
            finally:
                self._waiting -= 1
        try:
            yield
        finally:
            self._leave(self._alone, mine)

    def _may_share(self, mine: int) -> bool:
        if mine in self._sharing or mine in self._alone:
            return True
        return not self._alone and not self._waiting

    def _others(self, mine: int) -> bool:
        return any(thread != mine for thread in (*self._sharing, *self._alone))

    def _leave(self, held: Counter[int], mine: int) -> None:
        with self._changed:
            held[mine] -= 1
            if not held[mine]:
                del held[mine]
            if not held or self._waiting:
                self._changed.notify_all()


class ForkSafeLock:
    """A lock that a thread may take again, and that nobody has in a forked child."""

    def __init__(self) -> None:
        self._lock = threading.RLock()
        _ALL.add(self)

    def __enter__(self) -> None:
        self._lock.acquire()

    def __exit__(self, *_: object) -> None:
        self._lock.release()


_ALL: weakref.WeakSet[Sharing | ForkSafeLock] = weakref.WeakSet()


def _start_anew() -> None:
    for one in list(_ALL):
        one.__init__()  # type: ignore[misc]


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_start_anew)
