"""What a server is told at its start."""

from __future__ import annotations

import ipaddress
import re
from dataclasses import dataclass, field
from urllib.parse import urlsplit

from ...compiler.errors import UsageError
from ...compiler.printable import half_character
from ...jobs.bounds import Bounds

_ORIGIN = re.compile(r"https?://[a-z0-9._:\[\]-]+|(?!https?:)[a-z][a-z0-9+.-]*://[^/\\?#@*,\s]*")
_NAME = re.compile(r"[^/:?#@*,\s\[\]]+")
_PORTS = {"http": 80, "https": 443}
"""The ports that browsers leave out."""
LOOPBACK = ("127.0.0.1", "localhost", "::1")


@dataclass(frozen=True)
class Settings:
    """Where a server listens, from whom it takes requests, and how large they may be.

    ``model`` is what clients call the pipeline, ``hosts`` are further names in a Host header, ``origins`` the pages of
    others that may ask (CORS). ``waiting`` is how many jobs may wait, and ``batch`` how many that differ in prompt and
    seed alone one call may paint. ``body`` is how many bytes a request may have, ``bodies`` how many all of them that
    are not answered yet, and ``head`` and ``seconds`` how long its head and its body may take to arrive. ``kept`` is
    how long pictures are kept, in seconds, and ``kept_bytes`` how much of them.
    """

    model: str = "dovetail"
    host: str = LOOPBACK[0]
    port: int = 7860
    key: str = ""
    hosts: tuple[str, ...] = ()
    origins: tuple[str, ...] = ()
    waiting: int = 32
    batch: int = 1
    bounds: Bounds = field(default_factory=Bounds)
    body: int = 48 * 2**20
    bodies: int = 512 * 2**20
    head: float = 20.0
    seconds: float = 60.0
    kept: float = 3600.0
    kept_bytes: int = 512 * 2**20

    def check(self) -> None:
        """Raises UsageError for an address that others reach without a key, and for a bad key, origin or host."""
        if self.host not in LOOPBACK and not self.key:
            raise UsageError(
                f"{self.host} is an address that other machines reach: give a key that clients have to send, in the "
                "environment variable DOVETAIL_API_KEY or with --api-key-file FILE, or leave out --host"
            )
        if self.key and (len(self.key) < 8 or not self.key.isascii() or not self.key.isprintable()):
            raise UsageError("an API key has at least 8 characters, all of them printable ASCII")
        for origin in self.origins:
            if not _is_origin(origin):
                raise UsageError(
                    f"--cors {origin} is no origin: write one as browsers send it, without a path, without the port "
                    "80 or 443 and in small letters, as in https://example.org or http://localhost:3000; each site is "
                    "named"
                )
        for name in self.hosts:
            if not _NAME.fullmatch(name) and not is_address(name.strip("[]"), ipaddress.IPv6Address):
                raise UsageError(
                    f"--allow-host {name} is no name of a host: write it without a scheme, a port and a path, as in "
                    "box.example.org"
                )
        if half_character(self.model):
            raise UsageError(f"{self.model!r} has half of a character, which no answer can say: give --name another")


def _is_origin(text: str) -> bool:
    """Whether a browser may send this as the origin of a page."""
    if not _ORIGIN.fullmatch(text):
        return False
    try:
        parts = urlsplit(text)
        return parts.port is None or parts.port != _PORTS.get(parts.scheme)
    except ValueError:  # a port or an address that none can be
        return False


def is_address(name: str, kind: type[ipaddress.IPv4Address | ipaddress.IPv6Address]) -> bool:
    """Whether a host is named by an address of a kind."""
    try:
        kind(name)
    except ValueError:
        return False
    return "%" not in name  # a scope may be any text
