"""Signals that ask a process to end, and end it as Ctrl-C does: drafts go, latents stay, the cursor is back."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

_WORDS = {"SIGINT": "interrupted", "SIGTERM": "terminated", "SIGHUP": "hung up"}


class AskedToEnd(KeyboardInterrupt):
    """A signal other than Ctrl-C has asked this process to end; ``signum`` is its number."""

    def __init__(self, signum: int) -> None:
        super().__init__(signum)
        self.signum = signum


@contextmanager
def heeding() -> Iterator[None]:
    """Turns signals that would end the process at once into AskedToEnd, but not those that are heeded or ignored."""
    names = [name for name in _WORDS if hasattr(signal, name)]
    ours = [one for one in map(signal.Signals.__getitem__, names) if signal.getsignal(one) is signal.SIG_DFL]
    if threading.current_thread() is not threading.main_thread():
        ours = []
    for one in ours:
        signal.signal(one, _ask)
    try:
        yield
    finally:
        for one in ours:
            signal.signal(one, signal.SIG_DFL)


def told(interrupt: KeyboardInterrupt) -> tuple[str, int]:
    """What is said of an interrupt, and its exit code: 128 and the number of the signal."""
    signum = interrupt.signum if isinstance(interrupt, AskedToEnd) else signal.SIGINT
    return _WORDS[signal.Signals(signum).name], 128 + signum


def _ask(signum: int, _frame: FrameType | None) -> None:
    raise AskedToEnd(signum)
