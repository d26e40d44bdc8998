"""The application: every route, and what a request passes before it reaches one."""

from __future__ import annotations

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from starlette.exceptions import HTTPException
from starlette.middleware.cors import CORSMiddleware
from starlette.responses import Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from .api import a1111, openai, own
from .api.problems import problem_of
from .api.served import Served
from .guard.access import Access
from .guard.bodies import Bodies
from .guard.refusals import refusal
from .page.page import routes as page_routes
from .work.measures import Measures

_HEADERS = (
    (b"x-content-type-options", b"nosniff"),
    (b"referrer-policy", b"no-referrer"),
    (b"x-frame-options", b"DENY"),
)


def application(served: Served) -> ASGIApp:
    """The server's application: ASGI, as uvicorn runs it."""
    app = FastAPI(title="dovetail", docs_url=None, redoc_url=None, openapi_url=None, redirect_slashes=False)
    for router in (openai.routes(served), a1111.routes(served), own.routes(served), page_routes()):
        app.include_router(router)
    app.add_exception_handler(HTTPException, _told_of_http)
    app.add_exception_handler(RequestValidationError, _told_of_query)
    settings = served.settings
    guarded: ASGIApp = Access(Bodies(_Caught(app), settings), settings)
    if settings.origins:
        asked = {"allow_methods": ("GET", "POST"), "allow_headers": ("authorization", "content-type")}
        guarded = CORSMiddleware(guarded, allow_origins=settings.origins, **asked)
    return _Counted(guarded, served.measures)


async def _told_of_http(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    return refusal(request.url.path, error.status_code, str(error.detail), error.headers)


async def _told_of_query(request: Request, _: Exception) -> Response:
    return refusal(request.url.path, 400, "the address has a query that this route does not take")


class _Caught:
    """Answers what a route raises; where an answer has begun, the connection ends."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        has_begun = False

        async def noted(message: Message) -> None:
            nonlocal has_begun
            has_begun = has_begun or message["type"] == "http.response.start"
            await send(message)

        try:
            await self._app(scope, receive, noted)
        except Exception as error:
            if has_begun or scope["type"] != "http":
                raise
            problem = problem_of(error)
            await refusal(scope["path"], problem.status, problem.message, problem.headers)(scope, receive, send)


class _Counted:
    """Counts answers by route and status, and adds the headers that every answer has."""

    def __init__(self, app: ASGIApp, measures: Measures) -> None:
        self._app, self._requests = app, measures.requests

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        async def noted(message: Message) -> None:
            if message["type"] == "http.response.start":
                message["headers"] = [*message.get("headers", ()), *_HEADERS]
                route = getattr(scope.get("route"), "path", "none")
                self._requests.labels(route, message["status"]).inc()
            await send(message)

        await self._app(scope, receive, noted)
