"""A lock that calls share, and that a change to what they use takes alone; an interrupt at no moment leaves it taken.

An interrupt (Ctrl-C) is raised between any two statements of Python, also before the first of an ``__exit__``. So
a plain lock is entered by C alone, and what a thread has of a shared one is noted by an object that its frame holds:
it has it no longer when that is gone.
"""

from __future__ import annotations

import contextlib
import threading
import weakref
from collections.abc import Callable, Iterator
from typing import TypeAlias

from ..runtime.devices.fork import renew_after_fork

_LOOK_AGAIN = 0.2
"""Seconds after which who waits looks again, in case an interrupt has kept somebody from waking him."""


class _Entry:
    """Stands for one thread's having, or waiting for, a lock; the frame that has it holds this alone."""

    __slots__ = ("__weakref__",)


_Threads: TypeAlias = "weakref.WeakKeyDictionary[_Entry, int]"


class Sharing:
    """Any number of threads share it, or one has it alone; a thread that has it may enter again.

    Whoever wants it alone goes before those who come to share it later. In a forked child nobody has it.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._sharing: _Threads = weakref.WeakKeyDictionary()
        self._alone: _Threads = weakref.WeakKeyDictionary()
        self._waiting: _Threads = weakref.WeakKeyDictionary()
        self._asleep: list[threading.Lock] = []
        renew_after_fork(self)

    def renew(self) -> None:
        """Has nobody have it, in a process that was forked."""
        self.__init__()  # type: ignore[misc]

    def shared(self) -> contextlib.AbstractContextManager[None]:
        """Has it together with others; waits while another thread has it alone, or waits for that."""
        return self._held(self._sharing, self._may_share)

    def alone(self) -> contextlib.AbstractContextManager[None]:
        """Has it alone; waits until no other thread has it."""
        return self._held(self._alone, self._may_be_alone)

    @contextlib.contextmanager
    def _held(self, held: _Threads, may: Callable[[int], bool]) -> Iterator[None]:
        entry = _Entry()
        try:
            self._enter(entry, held, may)
            yield
        finally:
            self._leave(entry)

    def _enter(self, entry: _Entry, held: _Threads, may: Callable[[int], bool]) -> None:
        mine = threading.get_ident()
        while True:
            with self._lock:
                if may(mine):
                    held[entry] = mine
                    self._waiting.pop(entry, None)
                    return
                if held is self._alone:
                    self._waiting[entry] = mine
                asleep = threading.Lock()
                asleep.acquire()
                self._asleep.append(asleep)
            asleep.acquire(timeout=_LOOK_AGAIN)

    def _leave(self, entry: _Entry) -> None:
        with self._lock:
            for threads in (self._sharing, self._alone, self._waiting):
                threads.pop(entry, None)
            woken, self._asleep = self._asleep, []
        for asleep in woken:
            asleep.release()

    def _may_share(self, mine: int) -> bool:
        if not self._alone and not self._waiting:
            return True
        return mine in self._sharing.values() or mine in self._alone.values()

    def _may_be_alone(self, mine: int) -> bool:
        return all(thread == mine for held in (self._sharing, self._alone) for thread in held.values())
