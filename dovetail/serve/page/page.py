"""The page at ``/``: its files, which come from the package, and the policy that lets it ask this server alone."""

from __future__ import annotations

import functools
from importlib.resources import files

from fastapi import APIRouter
from starlette.responses import Response

from ...draw.page.page import asset as shared

_POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' blob: data:; connect-src 'self'; "
    "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)
_SCRIPTS = ("ask.js", "form.js", "stage.js", "side.js", "studio.js")


def routes() -> APIRouter:
    """The routes of the page and of its files."""
    router = APIRouter()

    @router.get("/")
    async def page() -> Response:
        return _answer(_own("studio.html"), "text/html", {"Content-Security-Policy": _POLICY})

    @router.get("/assets/studio.css")
    async def style() -> Response:
        return _answer("\n".join((shared("page.css"), _own("studio.css"))), "text/css")

    @router.get("/assets/studio.js")
    async def script() -> Response:
        return _answer("\n".join((shared("base.js"), *map(_own, _SCRIPTS))), "text/javascript")

    @router.get("/favicon.ico")
    async def icon() -> Response:
        return _answer(_own("icon.svg"), "image/svg+xml")

    return router


def _answer(text: str, kind: str, headers: dict[str, str] | None = None) -> Response:
    return Response(text, media_type=kind, headers={"Cache-Control": "no-cache", **(headers or {})})


@functools.cache
def _own(name: str) -> str:
    return files(__package__).joinpath("assets", name).read_text(encoding="utf-8")
