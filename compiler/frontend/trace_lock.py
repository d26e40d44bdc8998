"""Traces one at a time, and keeps what a trace patches from the threads that do not trace.

torch.fx replaces ``nn.Module.__call__`` and ``nn.Module.__getattr__`` for all threads while it traces. Here a
replacement acts in the thread that made it alone: modules that others call meanwhile run as ever.
"""

from __future__ import annotations

import contextlib
import functools
import os
import threading
from collections.abc import Callable, Iterator
from typing import Any

from torch.fx import _symbolic_trace


class _Turn:
    """The lock of whoever traces; a forked child starts with a new one."""

    def __init__(self) -> None:
        self.lock = threading.RLock()


_turn = _Turn()
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_turn.__init__)  # type: ignore[misc]


@contextlib.contextmanager
def alone() -> Iterator[None]:
    """Waits until no other thread traces; a thread may enter again."""
    with _turn.lock:
        patcher: Any = _symbolic_trace._Patcher
        original = patcher.patch_method
        patcher.patch_method = functools.partialmethod(_patch_for_this_thread, original)
        try:
            yield
        finally:
            patcher.patch_method = original


def _patch_for_this_thread(
    patcher: Any, patch: Callable[..., None], cls: type, name: str, new: Callable[..., Any], deduplicate: bool = True
) -> None:
    """Does what ``patch`` does, for the calling thread alone."""
    before = getattr(cls, name)
    mine = threading.get_ident()

    @functools.wraps(new)
    def chosen(*args: Any, **kwargs: Any) -> Any:
        return (new if threading.get_ident() == mine else before)(*args, **kwargs)

    patch(patcher, cls, name, chosen, deduplicate)
