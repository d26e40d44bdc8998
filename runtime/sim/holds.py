"""What the tensors of one storage share, and what is done when the last of them is gone: by who next looks.

Nothing of Python runs where a tensor dies. An interrupt (Ctrl-C) that comes inside of a ``__del__``, or of a weak
reference's callback, is swallowed by Python, and the rest of it does not run: the call would go on, and its memory
would never be given back. So the callback here is a function of C, which puts the storage into a queue.
"""

from __future__ import annotations

import contextlib
import threading
import weakref
from collections import deque
from collections.abc import Callable


class Hold:
    """Is shared by all tensors of one storage, and by nothing else; ``leave`` is called some time after it is gone.

    It is called by `sweep`, perhaps more than once, and must not refer to the hold.
    """

    __slots__ = ("__weakref__",)

    def __init__(self, leave: Callable[[], None]) -> None:
        _alive[weakref.ref(self, _gone.append)] = leave


_alive: dict[weakref.ref[Hold], Callable[[], None]] = {}
_gone: deque[weakref.ref[Hold]] = deque()
_lock = threading.RLock()


def sweep() -> None:
    """Calls ``leave`` of all holds that are gone; one that is interrupted is called again by the next sweep."""
    if not _gone:
        return
    with _lock:
        for one in list(_gone):
            leave = _alive.get(one)
            if leave is not None:
                leave()
                _alive.pop(one, None)
            with contextlib.suppress(ValueError):  # a finalizer that ran meanwhile has swept too
                _gone.remove(one)
