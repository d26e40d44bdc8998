"""The server's own routes: what the page asks, how the server is, and pictures that are kept."""

from __future__ import annotations

import time
from typing import Any

from fastapi import APIRouter, Request
from prometheus_client import CONTENT_TYPE_LATEST
from pydantic import Field
from starlette.responses import JSONResponse, Response

from ...jobs.facts import facts_of
from ...jobs.job import Job
from ..work.ticket import Form, Ticket
from .events import Event, stream, watched
from .pictures import decoded, inline
from .problems import Route, problem_of
from .served import Body, NotFoundError, Served, any_seed, read


class Asked(Body):
    """What the page asks for; each is as `dovetail generate` takes it."""

    prompt: str
    negative_prompt: str | None = None
    width: int | None = None
    height: int | None = None
    steps: int | None = None
    guidance: float | None = None
    cfg_scale: float | None = None
    seed: int | None = None
    count: int = 1
    loras: dict[str, float] = Field(default_factory=dict)
    image: str | None = None
    mask: str | None = None
    strength: float | None = None

    def job(self, served: Served) -> Job:
        """What is to be painted."""
        bounds = served.settings.bounds
        image, mask = (
            decoded(text, name, bounds) if text else None for name, text in (("image", self.image), ("mask", self.mask))
        )
        return Job(
            self.prompt, self.negative_prompt, self.width, self.height, self.steps, self.guidance, self.cfg_scale,
            any_seed(self.seed), tuple(self.loras.items()), image, mask, self.strength, self.count,
        )  # fmt: skip


def routes(served: Served) -> APIRouter:
    """The routes of a server."""
    router, begun = APIRouter(route_class=Route), time.time()

    @router.post("/api/generate")
    async def generate(request: Request) -> Response:
        return _streamed(served, await read(request, Asked))

    @router.get("/api/state")
    async def state() -> JSONResponse:
        return JSONResponse({**_state(served), "up": round(time.time() - begun, 1)}, headers=_FRESH)

    @router.get("/pictures/{name}")
    async def picture(name: str) -> Response:
        found = served.kept.find(name)
        if found is None:
            raise NotFoundError("this picture is not kept any more, or never was")
        headers = {"Cache-Control": "private, max-age=600", "Content-Security-Policy": "default-src 'none'"}
        return Response(found.data, media_type=found.form.mime, headers=headers)

    @router.get("/health")
    async def health() -> JSONResponse:
        return JSONResponse({"status": "ok"}, headers=_FRESH)

    @router.get("/ready")
    async def ready() -> JSONResponse:
        is_ready = not served.queue.is_closing
        return JSONResponse({"ready": is_ready}, 200 if is_ready else 503, headers=_FRESH)

    @router.get("/metrics")
    async def metrics() -> Response:
        return Response(served.measures.text(served.queue), media_type=CONTENT_TYPE_LATEST)

    return router


_FRESH = {"Cache-Control": "no-store"}


def _streamed(served: Served, asked: Asked) -> Response:
    """Events of a job: ``queued``, ``step``, ``preview``, and ``done`` or ``error`` at the end."""
    queue = served.queue
    ticket = queue.submit(served.job(asked.job(served)), Form(), previews=True)
    shown = [0]

    def progress(ticket: Ticket) -> list[Event]:
        if not ticket.begun:
            tickets = queue.tickets()
            return [("queued", {"before": tickets.index(ticket) if ticket in tickets else 0, "seed": ticket.job.seed})]
        told: list[Event] = [("step", {"step": ticket.step, "of": ticket.steps, "seconds": round(ticket.seconds, 2)})]
        if ticket.preview and ticket.preview_step != shown[0]:
            shown[0] = ticket.preview_step
            told.append(("preview", {"step": ticket.preview_step, "picture": inline(ticket.preview)}))
        return told

    def end(ticket: Ticket) -> list[Event]:
        pictures = [
            {"url": f"/pictures/{served.kept.keep(data, ticket.form)}", "seed": seed}
            for data, seed in zip(ticket.files, _seeds(ticket), strict=True)
        ]
        size = {"width": ticket.size[0], "height": ticket.size[1]}
        facts = {"seconds": round(ticket.seconds, 3), "kept": served.settings.kept, "prompt": ticket.job.prompt, **size}
        return [("done", {"pictures": pictures, "steps": ticket.steps // ticket.job.count, **facts})]

    def failed(error: BaseException) -> list[Event]:
        problem = problem_of(error)
        return [("error", {"status": problem.status, "message": problem.message})]

    return stream(watched(queue, ticket, progress, end, failed))


def _seeds(ticket: Ticket) -> list[int]:
    """The seed of each file; frames of a video have one seed."""
    frames = max(1, len(ticket.files) // ticket.job.count)
    return [ticket.job.seed + index // frames for index in range(len(ticket.files))]


def _state(served: Served) -> dict[str, Any]:
    """What the page shows besides pictures; of jobs of others no more than their sizes."""
    settings, about, facts = served.settings, served.about, list(map(facts_of, served.painters))
    return {
        "model": settings.model,
        "loras": list(about.loras),
        "sampler": about.sampler,
        "defaults": {"width": about.size[0], "height": about.size[1], "steps": about.steps},
        "tasks": list(about.tasks),
        "bounds": vars(settings.bounds),
        "queue": {"most": settings.waiting, "jobs": list(map(_told, served.queue.tickets()))},
        "devices": [
            {"name": name, "painter": number, **vars(device)}
            for number, one in enumerate(facts)
            for name, device in one.devices.items()
        ],
        "phases": [{name: round(seconds, 3) for name, seconds in one.phases.items()} for one in facts],
    }


def _told(ticket: Ticket) -> dict[str, Any]:
    job = ticket.job
    return {
        "state": ticket.state, "step": ticket.step, "of": ticket.steps, "width": job.width, "height": job.height,
        "count": job.count, "seconds": round(ticket.seconds or time.time() - ticket.asked, 1),
    }  # fmt: skip
