"""Pictures that are kept for a while, each under a name that cannot be guessed."""

from __future__ import annotations

import secrets
import threading
import time
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass

from .ticket import Form


@dataclass(frozen=True)
class Kept:
    """A picture as a file, and until when it is kept."""

    data: bytes
    form: Form
    until: float


class KeptPictures:
    """Pictures in memory: the oldest leave first, where they are too many, or their time is over.

    Args:
        seconds: how long a picture is kept.
        most: how many bytes are kept in all.
        clock: says what time it is.
    """

    def __init__(self, seconds: float, most: int, clock: Callable[[], float] = time.monotonic) -> None:
        self._seconds, self._most, self._clock = seconds, most, clock
        self._lock = threading.Lock()
        self._kept: OrderedDict[str, Kept] = OrderedDict()
        self._bytes = 0

    def keep(self, data: bytes, form: Form) -> str:
        """Keeps a picture; returns its name."""
        name = secrets.token_urlsafe(24)
        with self._lock:
            self._kept[name] = Kept(data, form, self._clock() + self._seconds)
            self._bytes += len(data)
            self._drop()
        return name

    def find(self, name: str) -> Kept | None:
        """The picture of a name, if it is kept still."""
        with self._lock:
            self._drop()
            return self._kept.get(name)

    def _drop(self) -> None:
        now = self._clock()
        while self._kept:
            name, first = next(iter(self._kept.items()))
            if first.until > now and self._bytes <= self._most:
                return
            del self._kept[name]
            self._bytes -= len(first.data)
