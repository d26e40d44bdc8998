"""The routes of OpenAI's images API: a client of theirs needs another base URL, and nothing else."""

from __future__ import annotations

import re
import time
from collections.abc import Mapping
from typing import Any, Literal

from fastapi import APIRouter, Request
from pydantic import Field
from starlette.responses import JSONResponse, Response

from ...compiler.errors import UsageError
from ...jobs.job import Job
from ..guard.refusals import param_of
from ..work.ticket import Form, Ticket
from .events import Event, stream, watched
from .forms import read_form
from .pictures import inline, transparent_part
from .problems import Route, problem_of
from .served import Body, NotFoundError, Served, any_seed, parsed, read

_SIZE = re.compile(r"([0-9]{1,9})x([0-9]{1,9})")
_THEIRS = ("dall-e", "gpt-image", "chatgpt-image")
"""How names of OpenAI's own models begin, which clients send where nobody has named one; this server's paints then."""
_BY_URL = "dall-e"
"""Those that answer with an address where a client does not say what it wants."""


class Asked(Body):
    """A request: OpenAI's parameters, and after these the ones of this server."""

    prompt: str
    model: str | None = None
    n: int | None = None
    size: str | None = None
    response_format: Literal["url", "b64_json"] | None = None
    output_format: Literal["png", "jpeg", "webp"] | None = None
    output_compression: int | None = Field(None, ge=0, le=100)
    stream: bool | None = None
    partial_images: int | None = Field(None, ge=0, le=3)
    background: Literal["transparent", "opaque", "auto"] | None = None

    seed: int | None = None
    steps: int | None = None
    guidance: float | None = None
    cfg_scale: float | None = None
    negative_prompt: str | None = None
    loras: dict[str, float] = Field(default_factory=dict)
    strength: float | None = None

    def job(self, image: bytes | None = None, mask: bytes | None = None) -> Job:
        """What is to be painted; raises UsageError for a size that is none."""
        width, height = _size(self.size)
        return Job(
            self.prompt, self.negative_prompt, width, height, self.steps, self.guidance, self.cfg_scale,
            any_seed(self.seed), tuple(self.loras.items()), image, mask, self.strength,
            1 if self.n is None else self.n,
        )  # fmt: skip

    @property
    def form(self) -> Form:
        """How its pictures are to be written."""
        quality = 90 if self.output_compression is None else max(1, self.output_compression)
        return Form(self.output_format or "png", quality)

    @property
    def is_by_url(self) -> bool:
        """Whether it is answered with addresses."""
        own = "url" if (self.model or "").startswith(_BY_URL) else "b64_json"
        return (self.response_format or own) == "url"


def routes(served: Served) -> APIRouter:
    """The routes of a server."""
    router, model = APIRouter(route_class=Route), served.settings.model

    @router.post("/v1/images/generations")
    async def generate(request: Request) -> Response:
        return await _answer(served, request, await read(request, Asked), None, None)

    @router.post("/v1/images/edits")
    async def edit(request: Request) -> Response:
        fields, files = await read_form(request, ("image", "mask"), served.settings.body)
        image, mask = files.get("image"), files.get("mask")
        if image is None:
            raise UsageError("an edit needs a picture: send it as the file image", field="image")
        hole = transparent_part(mask or image, "mask" if mask else "image", served.settings.bounds)
        return await _answer(served, request, parsed(fields, Asked), image, hole or mask)

    @router.get("/v1/models")
    async def models() -> JSONResponse:
        return JSONResponse({"object": "list", "data": [_model(model)]})

    @router.get("/v1/models/{name:path}")
    async def one_model(name: str) -> JSONResponse:
        _check_model(name, model)
        return JSONResponse(_model(model))

    return router


async def _answer(served: Served, request: Request, asked: Asked, image: bytes | None, mask: bytes | None) -> Response:
    _check_model(asked.model, served.settings.model)
    served.settings.bounds.check_count("n", asked.n)
    if asked.background == "transparent":
        raise UsageError("background is transparent: pictures are painted whole, leave it out", field="background")
    job = asked.job(image, mask)
    if asked.stream:
        return _streamed(served, asked, job, "image_edit" if image else "image_generation")
    ticket = await served.painted(request, job, asked.form)
    data = [_datum(served, request, ticket, asked, index) for index in range(len(ticket.files))]
    return JSONResponse(
        {"created": int(time.time()), "data": data, **_facts(ticket)}, headers={"Cache-Control": "no-store"}
    )


def _datum(served: Served, request: Request, ticket: Ticket, asked: Asked, index: int) -> dict[str, Any]:
    data, seed = ticket.files[index], {"seed": ticket.job.seed + index}
    if not asked.is_by_url:
        return {"b64_json": inline(data), **seed}
    name = served.kept.keep(data, ticket.form)
    return {"url": str(request.base_url.replace(path=f"/pictures/{name}")), **seed}


def _facts(ticket: Ticket) -> dict[str, Any]:
    return {
        "size": "x".join(map(str, ticket.size)),
        "output_format": ticket.form.kind,
        "background": "opaque",
        "usage": _USAGE,
    }


_USAGE: Mapping[str, Any] = {
    "input_tokens": 0, "output_tokens": 0, "total_tokens": 0,
    "input_tokens_details": {"image_tokens": 0, "text_tokens": 0},
}  # fmt: skip
"""Nobody counts tokens here; clients of streams expect the numbers."""


def _streamed(served: Served, asked: Asked, job: Job, kind: str) -> Response:
    """The answer as events: what there is of the picture now and then, and the picture."""
    if job.count > 1:
        raise UsageError("a stream has one picture: ask for n=1", field="n")
    wanted = asked.partial_images or 0
    ticket = served.queue.submit(served.job(job), asked.form, previews=bool(wanted))
    shown: list[int] = []

    def told(name: str, data: bytes, form: str, **more: Any) -> list[Event]:
        facts = {
            "type": f"{kind}.{name}", "b64_json": inline(data), "created_at": int(time.time()), "background": "opaque",
            "quality": "auto", "size": asked.size or "auto", "output_format": form, **more,
        }  # fmt: skip
        return [(f"{kind}.{name}", facts)]

    def progress(ticket: Ticket) -> list[Event]:
        due = ticket.preview and ticket.preview_step not in shown
        if not due or len(shown) >= wanted or ticket.step * (wanted + 1) < ticket.steps * (len(shown) + 1):
            return []
        shown.append(ticket.preview_step)
        return told("partial_image", ticket.preview, "jpeg", partial_image_index=len(shown) - 1)

    def end(ticket: Ticket) -> list[Event]:
        size = "x".join(map(str, ticket.size))
        more = {"usage": _USAGE, "seed": ticket.job.seed, "size": size}
        return told("completed", ticket.files[0], ticket.form.kind, **more)

    def failed(error: BaseException) -> list[Event]:
        problem = problem_of(error)
        told = {"message": problem.message, "type": "error", "param": param_of(problem.field), "code": None}
        return [("error", {"type": "error", "error": told})]

    return stream(watched(served.queue, ticket, progress, end, failed))


def _size(text: str | None) -> tuple[int | None, int | None]:
    if text is None or text == "auto":
        return None, None
    found = _SIZE.fullmatch(text)
    if found is None:
        raise UsageError(f"size is {text[:40]!r}: write width and height, such as 1024x1024, or auto", field="size")
    return int(found[1]), int(found[2])


def _check_model(name: str | None, own: str) -> None:
    if name is not None and name != own and not name.startswith(_THEIRS):
        raise NotFoundError(f"there is no model {name[:100]!r}: this server has {own}", field="model")


def _model(name: str) -> dict[str, Any]:
    return {"id": name, "object": "model", "created": 0, "owned_by": "dovetail"}
