"""Answers that say no, in the forms that clients of each kind of route read."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from starlette.responses import JSONResponse

A1111 = "/sdapi/"

_KINDS = {
    400: "invalid_request_error", 401: "authentication_error", 403: "permission_error", 404: "not_found_error",
    405: "invalid_request_error", 408: "timeout_error", 413: "invalid_request_error", 415: "invalid_request_error",
    422: "does_not_fit", 429: "rate_limit_error", 503: "service_unavailable",
}  # fmt: skip


def refusal(path: str, status: int, message: str, headers: Mapping[str, str] | None = None) -> JSONResponse:
    """An answer with a status and a sentence: as AUTOMATIC1111's clients read it on its routes, else as OpenAI's do."""
    kind = _KINDS.get(status, "server_error")
    code = kind if status != 404 else "not_found"
    body: dict[str, Any] = {"error": {"message": message, "type": kind, "param": None, "code": code}}
    if path.startswith(A1111):
        body = {"error": kind, "detail": message, "body": "", "errors": message}
    return JSONResponse(body, status, {"Cache-Control": "no-store", **(headers or {})})
