"""From whom a request comes, and for which host: the Host header, the page that asks, and the key."""

from __future__ import annotations

import base64
import binascii
import hmac
import ipaddress
import re
import socket
from collections.abc import Collection
from urllib.parse import urlsplit

from starlette.datastructures import Headers
from starlette.types import ASGIApp, Receive, Scope, Send

from ..work.settings import LOOPBACK, Settings, is_address
from .refusals import refusal

OPEN = ("/", "/health", "/ready", "/favicon.ico")
"""What needs no key: the page, which asks for it, and what a supervisor asks."""
OPEN_BELOW = ("/assets/", "/pictures/")
"""So do the page's own files, and pictures whose names cannot be guessed."""
_SAFE = ("GET", "HEAD", "OPTIONS")
_HOST = re.compile(r"(\[(?P<inside>[^\[\]]*)\]|(?P<name>[^:\[\]]*))(:[0-9]+)?")


class Access:
    """Answers requests that may not ask: 400 for another host, 403 for a foreign page, 401 without the key.

    Args:
        app: what answers the others.
        settings: those of the server.
    """

    def __init__(self, app: ASGIApp, settings: Settings) -> None:
        self._app = app
        self._key = settings.key.encode()
        self._hosts = {name.lower() for name in (*LOOPBACK, settings.host, socket.gethostname(), *settings.hosts)}
        self._origins = set(settings.origins)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answers or hands on."""
        if scope["type"] == "websocket":
            await send({"type": "websocket.close", "code": 1008})
            return
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        status, message = self._problem(scope)
        if not status:
            await self._app(scope, receive, send)
            return
        headers = {"WWW-Authenticate": 'Bearer, Basic realm="dovetail"'} if status == 401 else {}
        if status == 401 and "x-dovetail-page" in Headers(scope=scope):
            headers = {}  # the page asks for the key itself; with that header a browser would
        await refusal(scope["path"], status, message, headers)(scope, receive, send)

    def _problem(self, scope: Scope) -> tuple[int, str]:
        """A status and a sentence; 0 where there is no problem."""
        headers = Headers(scope=scope)
        hosts = headers.getlist("host")
        if len(hosts) != 1 or not is_known_host(hosts[0], self._hosts):
            return 400, "the Host header names no host that this server answers for: --allow-host NAME adds one"
        if scope["method"] not in _SAFE and not self._is_own_page(headers, hosts[0]):
            return 403, "a page of another origin may not ask: --cors ORIGIN lets it"
        path = scope["path"]
        is_open = path in OPEN or path.startswith(OPEN_BELOW) or _asks_before(scope["method"], headers)
        if self._key and not is_open and not self._has_key(headers):
            return 401, "this server asks for its API key: as Authorization: Bearer KEY, or as the password of Basic"
        return 0, ""

    def _is_own_page(self, headers: Headers, host: str) -> bool:
        """Whether no page asks, or the server's own, or one that was named."""
        origin = headers.get("origin")
        if origin is None:
            return headers.get("sec-fetch-site", "none") in ("none", "same-origin")
        return origin in self._origins or urlsplit_host(origin) == host.lower()

    def _has_key(self, headers: Headers) -> bool:
        given = headers.getlist("authorization")
        return len(given) == 1 and hmac.compare_digest(key_in(given[0]), self._key)


def _asks_before(method: str, headers: Headers) -> bool:
    """Whether a browser asks if it may ask, which it does without a key."""
    return method == "OPTIONS" and "access-control-request-method" in headers


def urlsplit_host(origin: str) -> str:
    """The host and port of an origin; empty of what is none."""
    try:
        return urlsplit(origin).netloc.lower()
    except ValueError:
        return ""


def is_known_host(header: str, hosts: Collection[str]) -> bool:
    """Whether a Host header names one of some hosts, or an address, which no other name can be made to lead to."""
    found = _HOST.fullmatch(header.lower())
    if found is None:
        return False
    inside, name = found["inside"], found["name"]
    if inside is not None:
        return is_address(inside, ipaddress.IPv6Address)
    return name in hosts or is_address(name, ipaddress.IPv4Address)


def key_in(header: str) -> bytes:
    """The key that an Authorization header gives: as Bearer, or as the password of Basic; empty where it has none."""
    scheme, _, value = header.strip().partition(" ")
    if scheme.lower() == "bearer":
        return value.strip().encode("latin-1", "replace")
    if scheme.lower() != "basic":
        return b""
    try:
        return base64.b64decode(value.strip().encode("latin-1"), validate=True).partition(b":")[2]
    except (binascii.Error, UnicodeEncodeError):
        return b""
