"""Answers that say no, in the forms that clients of each kind of route read."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from starlette.responses import JSONResponse

A1111, OPENAI = "/sdapi/", "/v1/"

_KINDS = {
    400: "invalid_request_error", 401: "authentication_error", 403: "permission_error", 404: "not_found_error",
    405: "invalid_request_error", 408: "timeout_error", 413: "invalid_request_error", 415: "invalid_request_error",
    422: "does_not_fit", 429: "rate_limit_error", 503: "service_unavailable",
}  # fmt: skip


_PARAMS = {"width": "size", "height": "size", "count": "n"}
"""What OpenAI's clients call what a job calls otherwise."""


def param_of(field: str) -> str | None:
    """What OpenAI's clients call a field of a request that is wrong; None where it is not known."""
    return _PARAMS.get(field, field) or None


def refusal(
    path: str, status: int, message: str, headers: Mapping[str, str] | None = None, field: str = ""
) -> JSONResponse:
    """An answer with a status and a sentence: as AUTOMATIC1111's clients read it on its routes, else as OpenAI's do.

    ``field`` is the one of the request that is wrong, where that is known.
    """
    kind = _KINDS.get(status, "server_error")
    message, field = (text.encode("utf-8", "replace").decode() for text in (message, field))  # names of files too
    param = param_of(field) if path.startswith(OPENAI) else field or None
    code = kind if status != 404 else "not_found"
    body: dict[str, Any] = {"error": {"message": message, "type": kind, "param": param, "code": code}}
    if path.startswith(A1111):
        body = {"error": kind, "detail": message, "body": "", "errors": message}
    return JSONResponse(body, status, {"Cache-Control": "no-store", **(headers or {})})
