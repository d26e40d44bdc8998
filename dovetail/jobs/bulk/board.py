"""Shows how far a list of prompts is: bars on a terminal, now and then a line in a log, or events."""

from __future__ import annotations

import contextlib
import sys
import threading
import time
from collections.abc import Iterator
from typing import TYPE_CHECKING

from ...cli.output.progress import FIRST, RATIO, tell
from .prompts import Line
from .result import Result

if TYPE_CHECKING:
    from rich.progress import Progress, TaskID

_HOUR = 3600


class Quiet:
    """Counts what is done and tells nobody.

    Args:
        total: how many lines there are.
        before: how many of them were done before.
    """

    def __init__(self, total: int = 0, before: int = 0) -> None:
        self.total, self.before = total, before
        self.done = self.failed = 0
        self.began = time.monotonic()
        self._changing = threading.Lock()

    def stepped(self, line: Line, replica: str, done: int, total: int) -> None:
        """A step of a line's picture is done."""

    def ended(self, result: Result) -> None:
        """A line is done, or cannot be."""
        with self._changing:
            self.failed += bool(result.error)
            self.done += not result.error

    def describe(self) -> str:
        """How far the list is, and how quick."""
        rate = pictures_an_hour(self.done, time.monotonic() - self.began)
        failed = f", {self.failed} failed" if self.failed else ""
        quick = f", {rate:.0f} pictures an hour" if self.done else ""
        return f"{self.before + self.done} of {self.total}{failed}{quick}"


class Lines(Quiet):
    """Writes a line to standard error now and then, the further apart the longer it takes."""

    def __init__(self, total: int, before: int = 0) -> None:
        super().__init__(total, before)
        self._next = self.began + FIRST

    def ended(self, result: Result) -> None:
        """A line is done, or cannot be."""
        super().ended(result)
        now = time.monotonic()
        if now >= self._next:
            self._next = now + max(FIRST, (now - self.began) * RATIO)
            print(f"{self.describe()}, {now - self.began:.0f} s so far", file=sys.stderr, flush=True)


class Events(Quiet):
    """Writes what happens as lines of JSON to standard error."""

    def stepped(self, line: Line, replica: str, done: int, total: int) -> None:
        """A step of a line's picture is done."""
        tell("step", line=line.number, replica=replica, step=done, of=total)

    def ended(self, result: Result) -> None:
        """A line is done, or cannot be."""
        super().ended(result)
        more = {"error": result.error} if result.error else {"files": list(map(str, result.files))}
        tell("line", line=result.line.number, done=self.before + self.done, of=self.total, **more)


class Bars(Quiet):
    """Bars on a terminal: one for the list, and one for each picture that is being painted."""

    def __init__(self, progress: Progress, total: int, before: int = 0) -> None:
        super().__init__(total, before)
        self._progress = progress
        self._all = progress.add_task(self.describe(), total=total, completed=before)
        self._each: dict[int, TaskID] = {}

    def stepped(self, line: Line, replica: str, done: int, total: int) -> None:
        """A step of a line's picture is done."""
        with self._changing:
            if line.number not in self._each:
                self._each[line.number] = self._progress.add_task("", total=total)
            title = f"  {replica or 'now'}: line {line.number}"
            self._progress.update(self._each[line.number], completed=done, total=total, description=title)

    def ended(self, result: Result) -> None:
        """A line is done, or cannot be."""
        super().ended(result)
        with self._changing:
            task = self._each.pop(result.line.number, None)
            if task is not None:
                self._progress.remove_task(task)
            self._progress.update(
                self._all, completed=self.before + self.done + self.failed, description=self.describe()
            )


@contextlib.contextmanager
def board(total: int, before: int, *, as_events: bool) -> Iterator[Quiet]:
    """What suits where standard error goes: bars on a terminal, which disappear at the end, else lines, or events."""
    if as_events or not sys.stderr.isatty():
        yield (Events if as_events else Lines)(total, before)
        return
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    console = Console(file=sys.stderr)
    with Progress(*columns, console=console, transient=True, redirect_stdout=sys.stdout.isatty()) as progress:
        yield Bars(progress, total, before)


def pictures_an_hour(count: int, seconds: float) -> float:
    """How many pictures there would be in an hour."""
    return count * _HOUR / seconds if seconds > 0 else 0.0
