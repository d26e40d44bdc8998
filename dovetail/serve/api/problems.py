"""What goes wrong, as a status and a sentence; no traceback and no path leaves the server."""

from __future__ import annotations

import dataclasses
import logging
from collections.abc import Callable, Coroutine, Mapping
from dataclasses import dataclass
from typing import Any

from fastapi import HTTPException, Request, Response
from fastapi.exceptions import RequestValidationError
from fastapi.routing import APIRoute

from ...compiler.errors import AdapterError, DoesNotFitError, DovetailError, UsageError
from ...recovery.recovery import is_out_of_memory
from ..guard.refusals import refusal
from ..work.queue import QueueFullError
from ..work.ticket import ClosingError, GoneError
from .served import NotFoundError

logger = logging.getLogger(__name__)

HUNG_UP = 499
"""The status of an answer that nobody reads."""


@dataclass(frozen=True)
class Problem:
    """A status, a sentence, headers that go with them, and the field of the request that is wrong, if one is known."""

    status: int
    message: str
    headers: Mapping[str, str] = dataclasses.field(default_factory=dict)
    field: str = ""


def problem_of(error: BaseException) -> Problem:
    """What a client is told of an error; what nobody foresaw is logged, and not told."""
    if isinstance(error, QueueFullError):
        return Problem(429, str(error), {"Retry-After": str(error.after)})
    if isinstance(error, ClosingError):
        return Problem(503, "the server ends and begins nothing new", {"Retry-After": "30"})
    if isinstance(error, GoneError):
        return Problem(HUNG_UP, "the job was given up")
    if isinstance(error, NotFoundError):
        return Problem(404, str(error), field=error.field)
    if isinstance(error, DoesNotFitError):
        return Problem(422, str(error))
    if isinstance(error, UsageError):
        return Problem(400, str(error), field=error.field)
    if is_out_of_memory(error):
        return Problem(503, "memory ran out while the picture was painted: try a smaller size", {"Retry-After": "5"})
    if isinstance(error, AdapterError):
        return Problem(500, str(error))
    logger.error("a request failed: %s", error, exc_info=error)
    if isinstance(error, DovetailError):
        return Problem(500, "the picture could not be painted: the server's log says why")
    return Problem(500, "something went wrong: the server's log says what")


class Route(APIRoute):
    """A route that answers whatever is raised in it: nothing passes to the server, which would print it."""

    def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        """The route's own handler, and what answers in its place."""
        own = super().get_route_handler()

        async def handler(request: Request) -> Response:
            try:
                return await own(request)
            except (HTTPException, RequestValidationError):
                raise
            except Exception as error:
                problem = problem_of(error)
                return refusal(request.url.path, problem.status, problem.message, problem.headers, problem.field)

        return handler
