"""The phases of a call of a pipeline: which one is going on, how long each took, and how much was read.

Whoever wants to know makes a `Phases` and has it ``watching`` a call. Code that begins something says so with `phase`
and `begin`; where nobody is watching that costs next to nothing. Of phases within one another the innermost counts.
"""

from __future__ import annotations

import contextlib
import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextvars import ContextVar

from ..compiler.units import format_bytes
from ..runtime.store.counter import READ

PLANNING, READING, SEARCHING = "planning", "reading", "looking for what fits"


class Phases:
    """The seconds of each phase of a call so far, in the order in which they began, and the bytes that were read.

    ``told`` is called with the name of each phase that begins. ``bytes_read`` counts what was brought in phases of
    reading, ``read_during`` what came of files in each phase.
    """

    def __init__(self, told: Callable[[str], None] = lambda _: None) -> None:
        self._told = told
        self.seconds: defaultdict[str, float] = defaultdict(float)
        self.read_during: defaultdict[str, int] = defaultdict(int)
        self.bytes_read = 0
        self._now = ""
        self._since = time.perf_counter()
        self._read_before = 0

    def turn_to(self, name: str) -> str:
        """Counts for another phase from now on; returns the one before."""
        before, now = self._now, time.perf_counter()
        if before:
            self.seconds[before] += now - self._since
            self.read_during[before] += READ.nbytes - self._read_before
        self._now, self._since, self._read_before = name, now, READ.nbytes
        if name and name != before:
            self.seconds[name] += 0
            self._told(name)
        return before

    @contextlib.contextmanager
    def watching(self) -> Iterator[Phases]:
        """Counts what this thread does meanwhile."""
        token = _WATCHING.set(self)
        try:
            yield self
        finally:
            self.turn_to("")
            _WATCHING.reset(token)

    def describe(self) -> str:
        """The phase that goes on; while files are read, with how much was read of them so far, and how fast."""
        read = READ.nbytes - self._read_before
        if self._now != READING or not read:
            return self._now
        rate = read / max(time.perf_counter() - self._since, 1e-9)
        return f"{READING} {format_bytes(read)} ({format_bytes(int(rate))}/s)"

    def __str__(self) -> str:
        """The seconds by phase."""
        return ", ".join(f"{name} {seconds:.1f} s" for name, seconds in self.seconds.items())


_WATCHING: ContextVar[Phases | None] = ContextVar("dovetail phases", default=None)


@contextlib.contextmanager
def phase(name: str) -> Iterator[None]:
    """Counts for a phase meanwhile, if somebody is watching, and for the one before it afterwards."""
    watching = _WATCHING.get()
    before = watching.turn_to(name) if watching else ""
    try:
        yield
    finally:
        if watching:
            watching.turn_to(before)


def begin(name: str) -> None:
    """Counts for a phase from now on, if somebody is watching."""
    watching = _WATCHING.get()
    if watching:
        watching.turn_to(name)


def note_read(nbytes: int) -> None:
    """Counts bytes that were read, if somebody is watching."""
    watching = _WATCHING.get()
    if watching:
        watching.bytes_read += nbytes
