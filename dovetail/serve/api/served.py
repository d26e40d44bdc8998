"""What all routes have: the queue, what is kept, and what clients may name."""

from __future__ import annotations

import random
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, replace
from typing import TypeVar

import anyio
from pydantic import BaseModel, ConfigDict, ValidationError
from starlette.requests import Request

from ...compiler.errors import UsageError
from ...compiler.schema_errors import field_of, told_of
from ...jobs.about import About
from ...jobs.job import Job
from ...jobs.runner import Painter
from ...lora.requested import scale_of, taken_from
from ..work.kept import KeptPictures
from ..work.measures import Measures
from ..work.queue import Queue
from ..work.settings import Settings
from ..work.ticket import DONE, Form, GoneError, Ticket

T = TypeVar("T", bound=BaseModel)
_SEEDS = 2**32


class NotFoundError(UsageError):
    """A model, a picture or a route that there is not."""


class Body(BaseModel):
    """A body of JSON; what it says beyond its fields is read by other servers, and means nothing here."""

    model_config = ConfigDict(extra="ignore", strict=True, allow_inf_nan=False, protected_namespaces=())


@dataclass(frozen=True)
class Served:
    """A server as its routes see it."""

    settings: Settings
    about: About
    queue: Queue
    painters: Sequence[Painter]
    kept: KeptPictures
    measures: Measures

    def job(self, job: Job) -> Job:
        """A job with the LoRAs that stand in its prompt, once it is within the bounds, before that and after."""
        self.settings.bounds.check(job)
        asked, (plain, named) = dict(job.loras), taken_from(job.prompt)
        job = replace(job, prompt=plain, loras=(*job.loras, *map(_scaled, named)))
        self.settings.bounds.check(job)
        for name, _ in job.loras:
            if name not in self.about.loras:
                there = ", ".join(self.about.loras) or "none"
                field = "loras" if name in asked else "prompt"
                raise UsageError(f"no LoRA is called {name[:100]!r}: there are {there}", field=field)
        return job

    async def painted(self, request: Request, job: Job, form: Form, *, previews: bool = False) -> Ticket:
        """The ticket of a job that was painted; the job ends where the client hangs up.

        Raises what the job failed with, and GoneError where nobody is there to be answered.
        """
        return done(await self.awaited(request, self.queue.submit(self.job(job), form, previews=previews)))

    async def awaited(self, request: Request, ticket: Ticket) -> Ticket:
        """A ticket once its job is over, or was left since the client hung up."""
        try:
            await first_of(ticket.over, lambda: hung_up(request))
        finally:
            if not ticket.is_over:
                self.queue.leave(ticket)
        return ticket


def done(ticket: Ticket) -> Ticket:
    """A ticket whose job was painted; raises what it failed with."""
    if ticket.error is not None:
        raise ticket.error
    if ticket.state != DONE:
        raise GoneError
    return ticket


async def first_of(*waiting: Callable[[], Awaitable[None]]) -> None:
    """Waits for one of several, and ends the others."""
    async with anyio.create_task_group() as group:

        async def ending(one: Callable[[], Awaitable[None]]) -> None:
            await one()
            group.cancel_scope.cancel()

        for one in waiting:
            group.start_soon(ending, one)


async def hung_up(request: Request) -> None:
    """Waits until the client hangs up."""
    while (await request.receive())["type"] != "http.disconnect":
        pass


async def read(request: Request, kind: type[T]) -> T:
    """The body of a request; raises UsageError where it is not as it must be, in words that repeat nothing of it."""
    return parsed(await request.body() or b"{}", kind)


def parsed(body: bytes, kind: type[T]) -> T:
    """The same of the bytes of a body."""
    try:
        return kind.model_validate_json(body)
    except ValidationError as error:
        raise UsageError(told_of(error), field=field_of(error)) from error


def any_seed(seed: int | None) -> int:
    """The seed that was asked for; one that is drawn where none was, or -1."""
    return random.randrange(_SEEDS) if seed is None or seed == -1 else seed


def _scaled(text: str) -> tuple[str, float]:
    """A name of ``NAME:SCALE`` and its scale; raises UsageError where that is no number."""
    name, colon, tail = text.rpartition(":")
    if not colon:
        return text, 1.0
    scale = scale_of(tail)
    if scale is None:
        raise UsageError(
            f"the prompt asks for the LoRA {name[:100]!r} with {tail[:40]!r}, which is no scale: write "
            "<lora:NAME:SCALE>, as in <lora:style:0.8>",
            field="prompt",
        )
    return name, scale
