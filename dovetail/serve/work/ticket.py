"""A job that somebody waits for: how far it is, and what came of it."""

from __future__ import annotations

import asyncio
import secrets
import threading
import time
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from typing import Any

from ...jobs.job import Job

WAITING, RUNNING, DONE, FAILED, GONE = "waiting", "running", "done", "failed", "gone"


class GoneError(Exception):
    """Nobody waits for a job any more."""


class ClosingError(Exception):
    """The server ends, and does not begin this job."""


@dataclass(frozen=True)
class Form:
    """How pictures are written: png, jpeg or webp, the last two of a quality."""

    kind: str = "png"
    quality: int = 90

    @property
    def mime(self) -> str:
        """What a client is told of it."""
        return f"image/{self.kind}"


@dataclass(eq=False)
class Ticket:
    """A job in the queue; ``files`` are its pictures, as bytes, once it is done, and ``error`` says why it failed.

    ``previews`` says whether somebody wants to see what there is meanwhile.
    """

    job: Job
    form: Form = field(default_factory=Form)
    previews: bool = False
    name: str = field(default_factory=lambda: secrets.token_urlsafe(12))
    state: str = WAITING
    step: int = 0
    steps: int = 0
    preview: bytes = b""
    preview_step: int = 0
    files: tuple[bytes, ...] = ()
    size: tuple[int, int] = (0, 0)
    error: BaseException | None = None
    is_checked: bool = False
    asked: float = field(default_factory=time.time)
    begun: float = 0.0
    ended: float = 0.0

    def __post_init__(self) -> None:
        self._lock = threading.Lock()
        self._watching: list[tuple[asyncio.AbstractEventLoop, asyncio.Event]] = []
        self._is_left = False

    @property
    def is_over(self) -> bool:
        """Whether nothing more happens to it."""
        return self.state in (DONE, FAILED, GONE)

    @property
    def seconds(self) -> float:
        """How long it has been painted."""
        return (self.ended or time.time()) - self.begun if self.begun else 0.0

    def leave(self) -> None:
        """Has the job end within a step, for nobody waits for it."""
        self._is_left = True
        self.tell()

    def check(self) -> None:
        """Raises GoneError where nobody waits for it."""
        if self._is_left:
            raise GoneError

    def end(self, state: str, **what: Any) -> None:
        """Has it be over; whoever watches is to be told then."""
        for name, value in what.items():
            setattr(self, name, value)
        self.ended = time.time()
        self.state = state

    def tell(self) -> None:
        """Wakes whoever watches it; from any thread."""
        with self._lock:
            watching = list(self._watching)
        for loop, changed in watching:
            if not loop.is_closed():
                loop.call_soon_threadsafe(changed.set)

    async def changes(self) -> AsyncIterator[None]:
        """Comes at once, after each change, and at the end."""
        mine = asyncio.get_running_loop(), asyncio.Event()
        with self._lock:
            self._watching.append(mine)
        try:
            while not self.is_over:
                yield
                await mine[1].wait()
                mine[1].clear()
        finally:
            with self._lock:
                self._watching.remove(mine)
        yield

    async def over(self) -> None:
        """Waits for its end."""
        async for _ in self.changes():
            pass
