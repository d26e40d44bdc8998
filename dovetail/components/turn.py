"""One call at a time over components that are planned together: they share one lock, as do pipelines that share some.

A call of the pipeline has the lock from its beginning to its end, and so has whatever changes a component; a thread
that has it may take it again. Threads of our own never take it. It is entered and left by C alone (``with turn.lock``):
an interrupt (Ctrl-C), which comes between any two statements of Python, at no moment leaves it taken.
"""

from __future__ import annotations

from ..runtime.devices.fork import ForkSafeLock
from .running_ahead import EndedError, running_ahead


class Turn:
    """The turn of calls over some components.

    Take it as ``with turn.lock, turn.lock``: while one waited for the first it may have been joined with another.
    """

    def __init__(self) -> None:
        self._lock = ForkSafeLock()
        self._into: Turn | None = None

    @property
    def lock(self) -> ForkSafeLock:
        """The lock, which a thread may take again, and that nobody has in a forked child.

        Raises EndedError in a thread that runs ahead: whoever waits for that may have the turn.
        """
        if running_ahead() is not None:
            raise EndedError("a thread that runs ahead takes no turn")
        return self._root()._lock

    def join(self, other: Turn) -> None:
        """Has two turns be one from now on; waits until no other thread has either of them."""
        while self._root() is not other._root():
            one, two = sorted((self._root(), other._root()), key=id)  # all who join wait in this order
            with one._lock, two._lock:
                if one._into is None and two._into is None:
                    two._into = one

    def _root(self) -> Turn:
        return self if self._into is None else self._into._root()
