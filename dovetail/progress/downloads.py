"""What is downloaded, and how much of it is here: for whoever shows what goes on."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator
from dataclasses import dataclass, field

from ..compiler.units import format_bytes


@dataclass
class Download:
    """A download that goes on: of what, of how many bytes, and how many of them are here."""

    name: str
    nbytes: int
    here: int = 0
    began: float = field(default_factory=time.monotonic)

    def __str__(self) -> str:
        """For example ``downloading owner/model: 1.2 GiB of 23.8 GiB (35.0 MiB/s)``."""
        rate = self.here / max(time.monotonic() - self.began, 1e-9)
        parts = f"{format_bytes(self.here)} of {format_bytes(self.nbytes)} ({format_bytes(int(rate))}/s)"
        return f"downloading {self.name}: {parts}"


_GOING: list[Download] = []
"""Those that go on, in any thread."""


@contextlib.contextmanager
def going(name: str, nbytes: int) -> Iterator[Download]:
    """Has a download be known meanwhile; who downloads adds to what is here."""
    download = Download(name, nbytes)
    _GOING.append(download)
    try:
        yield download
    finally:
        _GOING.remove(download)


def describe() -> str:
    """The download that began last, of those that go on; empty where there is none."""
    going = _GOING[-1:]
    return str(going[0]) if going else ""
