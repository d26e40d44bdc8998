"""What a process that was forked must make anew: threads and locks of its parent, which it has no use of."""

from __future__ import annotations

import os
import weakref
from _thread import RLock
from typing import Any, Protocol


class Renewable(Protocol):
    """Something that has threads or locks."""

    def renew(self) -> None:
        """Forgets threads, and locks that one of them may have held."""


_known: weakref.WeakSet[Any] = weakref.WeakSet()


def renew_after_fork(one: Renewable) -> None:
    """Has an object renewed in each child process that is forked while it is there."""
    _known.add(one)


def _renew_all() -> None:
    for one in list(_known):
        one.renew()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_renew_all)


class ForkSafeLock(RLock):  # type: ignore[misc]  # final for type checkers alone
    """A lock that a thread may take again, and that nobody has in a forked child."""

    def __init__(self) -> None:
        renew_after_fork(self)

    def renew(self) -> None:
        """Lets go of it for whichever thread of the parent had it."""
        self._at_fork_reinit()  # type: ignore[attr-defined]
