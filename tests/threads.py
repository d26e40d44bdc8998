"""A thread that runs beside a test until the test is over with it."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager


@contextmanager
def beside(
    run: Callable[[threading.Event], object], name: str = "beside", kind: type[threading.Thread] = threading.Thread
) -> Iterator[None]:
    """A thread of a name and kind, which runs something until the event that this is given is set."""
    over = threading.Event()
    thread = kind(target=run, args=(over,), name=name)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()
