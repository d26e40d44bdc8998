"""Connections: one that asks nothing for long, or does not take its answer, is closed, and makes room for others."""

from __future__ import annotations

import asyncio
from typing import Any

from uvicorn.protocols.http.h11_impl import H11Protocol

_LOOK = 0.5
"""Seconds between two looks at a connection, at most."""


class Connection(H11Protocol):
    """Reads requests as uvicorn does.

    A connection ends that has not sent a whole head within ``head`` seconds, and one that takes nothing of its answer
    for ``taking`` seconds; for ``ending`` seconds, once the server is asked to end.
    """

    head, taking, ending = 20.0, 60.0, 10.0

    def __init__(self, *args: Any, **more: Any) -> None:
        super().__init__(*args, **more)
        self._left = 0
        self._looking: asyncio.TimerHandle | None = None
        self._moved = self._asked = self.loop.time()
        self._is_asking = True

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Waits for a head, but not for ever."""
        super().connection_made(transport)
        self._look()

    def connection_lost(self, exc: Exception | None) -> None:
        """Waits for nothing any more."""
        if self._looking is not None:
            self._looking.cancel()
        super().connection_lost(exc)

    def handle_events(self) -> None:
        """Reads what came; after a whole head no other is waited for until the answer is given."""
        before = self.cycle
        super().handle_events()
        if self.cycle is not before:
            self._is_asking = False

    def on_response_complete(self) -> None:
        """Waits for the next head."""
        self._is_asking, self._asked = True, self.loop.time()
        super().on_response_complete()

    def shutdown(self) -> None:
        """Finishes its answer, if that is taken."""
        self.taking = min(self.taking, self.ending)
        super().shutdown()

    def _look(self) -> None:
        now, left = self.loop.time(), self.transport.get_write_buffer_size()
        if left != self._left or not left:
            self._left, self._moved = left, now
        if left:
            self._asked = now  # who still takes an answer asks nothing yet
        is_late = self._is_asking and now - self._asked > self.head
        if is_late or now - self._moved > self.taking:
            self.transport.abort()
            return
        self._looking = self.loop.call_later(min(_LOOK, self.head / 4, self.taking / 4), self._look)


def connections(head: float) -> type[Connection]:
    """Connections that have so many seconds for a head."""
    return type("Connection", (Connection,), {"head": head})
