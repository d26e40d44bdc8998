"""Bodies of requests: of the types that routes take, no larger and no slower than they may be, and not deep."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass

from starlette.datastructures import Headers
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from ..work.settings import Settings
from .refusals import refusal

FORMS = ("/v1/images/edits",)
"""Routes whose body is a form; all others take JSON."""
_DEPTH, _MARKS, _ALL_MARKS = 16, 50_000, 500_000
"""How deep the JSON of a body may be nested, how many brackets, commas and quotes it may have, and how many with those
in its texts."""
_OTHERS = bytes(set(range(256)) - set(b'[]{},"'))
_LENGTH = 20
"""Digits of a Content-Length; more of them are no number of bytes."""


class Bodies:
    """Reads the body of each request that has one before a route sees it, and answers where it is not as it must be.

    All bodies together, until each is answered, have no more bytes than ``settings.bodies``.

    Args:
        app: what answers requests whose body is in order.
        settings: those of the server.
    """

    def __init__(self, app: ASGIApp, settings: Settings) -> None:
        self._app, self._most, self._seconds = app, settings.body, settings.seconds
        self._room = settings.bodies

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answers or hands on, with the body at hand."""
        if scope["type"] != "http" or scope["method"] in ("GET", "HEAD", "OPTIONS"):
            await self._app(scope, receive, send)
            return
        held = _Held()
        try:
            await self._answer(held, scope, receive, send)
        finally:
            self._room += held.nbytes

    async def _answer(self, held: _Held, scope: Scope, receive: Receive, send: Send) -> None:
        path, headers = scope["path"], Headers(scope=scope)
        status, message = self._problem_of_head(path, headers)
        body = b""
        if not status:
            try:
                body = await asyncio.wait_for(self._read(held, receive), self._seconds)
            except _TooLargeError:
                status, message = self._too_large
            except _NoRoomError:
                status, message = 503, "the bodies of other requests take all the memory that there is for them"
            except asyncio.TimeoutError:
                status, message = 408, f"the body did not arrive within {self._seconds:g} s"
            except _HungUpError:
                return
        if not status and path not in FORMS and is_deep(body):
            status, message = 400, f"the body is nested more than {_DEPTH} deep, or has very many parts"
        if status:
            more = {"Retry-After": "10"} if status == 503 else {}
            await refusal(path, status, message, {"Connection": "close", **more})(scope, receive, send)
            return
        await self._app(scope, _given_again(body, receive), send)

    def _problem_of_head(self, path: str, headers: Headers) -> tuple[int, str]:
        wanted = "multipart/form-data" if path in FORMS else "application/json"
        kind = headers.get("content-type", "").partition(";")[0].strip().lower()
        length = headers.get("content-length", "")
        if kind != wanted and (length not in ("", "0") or "transfer-encoding" in headers or path in FORMS):
            return 415, f"this route takes {wanted}, and no {kind[:100] or 'body without a Content-Type'}"
        if headers.get("content-encoding", "identity").lower() != "identity":
            return 415, "bodies are taken as they are, without a Content-Encoding"
        if length and (not length.isascii() or not length.isdecimal() or len(length) > _LENGTH):
            return 400, "the Content-Length is no number of bytes"
        return self._too_large if length and int(length) > self._most else (0, "")

    @property
    def _too_large(self) -> tuple[int, str]:
        return 413, f"the body has more than {self._most} bytes"

    async def _read(self, held: _Held, receive: Receive) -> bytes:
        parts = []
        while True:
            message = await receive()
            if message["type"] == "http.disconnect":
                raise _HungUpError
            part = message.get("body", b"")
            if held.nbytes + len(part) > self._most:
                raise _TooLargeError
            if len(part) > self._room:
                raise _NoRoomError
            held.nbytes += len(part)
            self._room -= len(part)
            parts.append(part)
            if not message.get("more_body"):
                return b"".join(parts)


@dataclass
class _Held:
    """How many bytes of a request's body are in memory."""

    nbytes: int = 0


class _TooLargeError(Exception):
    pass


class _NoRoomError(Exception):
    pass


class _HungUpError(Exception):
    pass


def _given_again(body: bytes, receive: Receive) -> Receive:
    """Gives a body that was read, and after that what comes."""
    left = [body]

    async def again() -> Message:
        if left:
            return {"type": "http.request", "body": left.pop(), "more_body": False}
        return await receive()

    return again


def is_deep(text: bytes) -> bool:
    """Whether JSON is nested deeper, or of more parts, than any body that means something; what its texts say is none.

    It takes time in proportion to the text, whatever that is.
    """
    marks = text.replace(b"\\\\", b"").replace(b'\\"', b"").translate(None, _OTHERS)
    quotes = marks.count(b'"')
    if len(marks) > _ALL_MARKS or quotes > _MARKS:
        return True
    outside = b"".join(marks.split(b'"')[::2])
    if len(outside) + quotes > _MARKS:
        return True
    depth = most = 0
    for mark in outside.translate(None, b","):
        depth += 1 if mark in b"[{" else -1
        most = max(most, depth)
    return most > _DEPTH
