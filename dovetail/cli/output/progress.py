"""What goes on, on stderr: a bar where somebody looks at a terminal, now and then a line where it goes to a file."""

from __future__ import annotations

import itertools
import json
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

FIRST, RATIO = 10.0, 0.1
"""Seconds until the first line; and until another, as a part of what has passed."""


@contextmanager
def progress(
    title: str, total: int | None = None, describe: Callable[[], str] = str, *, as_events: bool = False
) -> Iterator[Callable[[], None]]:
    """Shows what goes on, while it does; what it gives is called after each of `total` steps.

    On a terminal that is a bar, or a spinner, which disappears when the work is done. Elsewhere it is a line after ten
    seconds and others after that, the further apart the longer it takes, so that a log stays short.

    Args:
        title: what it says goes on.
        total: how many steps there are.
        describe: is asked again and again for what goes on now; the title stands where that is empty. What is
            downloaded is said in place of both.
        as_events: each step is told as a line of JSON instead, see `tell`.
    """
    from ...progress.downloads import describe as describe_download

    shown = _events if as_events else _bar if sys.stderr.isatty() else _lines
    with shown(lambda: describe_download() or describe() or title, total) as advance:
        yield advance


@contextmanager
def planning_shown(title: str) -> Iterator[None]:
    """Shows that something is planned, and that what fits is looked for where nothing does as it was asked."""
    from ...progress.phases import PLANNING, Phases

    phases = Phases()

    def describe() -> str:
        now = phases.describe()
        return "" if now == PLANNING else now

    with progress(title, describe=describe), phases.watching():
        yield


def tell(event: str, **what: object) -> None:
    """Says on stderr what has happened, as one line of JSON: ``{"event": "phase", "phase": "sampling"}``."""
    sys.stderr.write(json.dumps({"event": event, **what}) + "\n")  # at once, for several threads may tell
    sys.stderr.flush()


@contextmanager
def _events(_: Callable[[], str], total: int | None) -> Iterator[Callable[[], None]]:
    steps = itertools.count(1)
    yield lambda: tell("step", step=next(steps), of=total)


@contextmanager
def _bar(describe: Callable[[], str], total: int | None) -> Iterator[Callable[[], None]]:
    from rich.console import Console
    from rich.progress import (
        BarColumn,
        MofNCompleteColumn,
        Progress,
        ProgressColumn,
        SpinnerColumn,
        Task,
        TimeElapsedColumn,
    )
    from rich.text import Text

    class Description(ProgressColumn):
        def render(self, task: Task) -> Text:
            return Text(describe())

    steps = (BarColumn(), MofNCompleteColumn()) if total else ()
    columns = (SpinnerColumn(), Description(), *steps, TimeElapsedColumn())
    with Progress(*columns, console=Console(file=sys.stderr), transient=True) as bar:
        task = bar.add_task("", total=total)
        yield lambda: bar.advance(task)


@contextmanager
def _lines(describe: Callable[[], str], total: int | None) -> Iterator[Callable[[], None]]:
    done, ended, began = [0], threading.Event(), time.monotonic()

    def advance() -> None:
        done[0] += 1

    def tell() -> None:
        while not ended.wait(max(FIRST, (time.monotonic() - began) * RATIO)):
            steps = f" {done[0]} of {total}" if total and 0 < done[0] < total else ""
            print(f"{describe()}{steps}, {time.monotonic() - began:.0f} s so far", file=sys.stderr, flush=True)

    teller = threading.Thread(target=tell, name="dovetail-progress", daemon=True)
    teller.start()
    try:
        yield advance
    finally:
        ended.set()
        teller.join()
