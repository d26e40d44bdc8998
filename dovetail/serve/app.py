"""The application: every route, and what a request passes before it reaches one."""

from __future__ import annotations

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from starlette.exceptions import HTTPException
from starlette.middleware.cors import CORSMiddleware
from starlette.responses import Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from .api import a1111, openai, own
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
    guarded: ASGIApp = Access(Bodies(app, settings), settings)
    if settings.origins:
        guarded = CORSMiddleware(
            guarded,
            allow_origins=settings.origins,
            allow_methods=("GET", "POST"),
            allow_headers=("authorization", "content-type"),
        )
    return _Counted(guarded, served.measures)


async def _told_of_http(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    return refusal(request.url.path, error.status_code, str(error.detail), error.headers)


async def _told_of_query(request: Request, _: Exception) -> Response:
    return refusal(request.url.path, 400, "the address has a query that this route does not take")


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
