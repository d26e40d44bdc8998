"""Server-sent events: how far a job is, what there is of its picture, and the end."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Callable, Mapping
from typing import Any

from starlette.responses import StreamingResponse

from ..work.queue import Queue
from ..work.ticket import DONE, Ticket

Event = tuple[str, Mapping[str, Any]]
"""The name of an event, and what it says."""


def stream(events: AsyncIterator[Event]) -> StreamingResponse:
    """An answer of events, none of which is kept on the way."""
    headers = {"Cache-Control": "no-store", "X-Accel-Buffering": "no"}
    return StreamingResponse(_lines(events), media_type="text/event-stream", headers=headers)


async def _lines(events: AsyncIterator[Event]) -> AsyncIterator[str]:
    async for name, what in events:
        yield f"event: {name}\ndata: {json.dumps(what, separators=(',', ':'))}\n\n"


async def watched(
    queue: Queue,
    ticket: Ticket,
    progress: Callable[[Ticket], list[Event]],
    end: Callable[[Ticket], list[Event]],
    failed: Callable[[BaseException], list[Event]],
) -> AsyncIterator[Event]:
    """What is told of a job until it is over; it ends within a step where nobody listens any more.

    Args:
        queue: the queue that the job is in.
        ticket: the job.
        progress: the events of a moment before the end.
        end: the events of a job that was painted.
        failed: the events of one that was not.
    """
    try:
        async for _ in ticket.changes():
            if not ticket.is_over:
                for event in progress(ticket):
                    yield event
        found = end(ticket) if ticket.state == DONE else failed(ticket.error or RuntimeError("the job has ended"))
        for event in found:
            yield event
    finally:
        if not ticket.is_over:
            queue.leave(ticket)
