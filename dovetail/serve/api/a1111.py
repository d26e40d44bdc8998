"""The routes of AUTOMATIC1111's web UI that clients use: text to picture, picture to picture, progress and lists."""

from __future__ import annotations

import contextlib
import json
import time
from typing import Any

from fastapi import APIRouter, Request
from pydantic import Field
from starlette.responses import JSONResponse, Response

from ...compiler.errors import UsageError
from ...jobs.job import Job
from ..work.ticket import RUNNING, WAITING, Form, GoneError, Ticket
from .pictures import decoded, inline
from .problems import Route
from .served import Body, Served, any_seed, done, read


class Asked(Body):
    """A request for pictures of a text; the names are those of the web UI."""

    prompt: str = ""
    negative_prompt: str = ""
    width: int | None = None
    height: int | None = None
    steps: int | None = None
    cfg_scale: float | None = None
    seed: int | None = -1
    batch_size: int | None = 1
    n_iter: int | None = 1
    override_settings: dict[str, Any] | None = None

    def job(self, served: Served, **more: Any) -> Job:
        """What is to be painted; raises UsageError for a checkpoint that there is not."""
        _check_checkpoint(self.override_settings or {}, served)
        return Job(
            self.prompt, self.negative_prompt or None, self.width, self.height, self.steps, None, self.cfg_scale,
            any_seed(self.seed), count=_times(self.batch_size, served) * _times(self.n_iter, served), **more,
        )  # fmt: skip


class AskedOfPicture(Asked):
    """The same, that begins with a picture."""

    init_images: list[str] = Field(max_length=1)
    mask: str | None = None
    denoising_strength: float | None = None
    inpainting_mask_invert: int | None = 0

    def job(self, served: Served, **more: Any) -> Job:
        """What is to be painted; raises UsageError for pictures that are not inline."""
        bounds = served.settings.bounds
        if not self.init_images:
            raise UsageError("init_images is empty: send the picture to begin with, as base64")
        if self.inpainting_mask_invert:
            raise UsageError(
                "inpainting_mask_invert means nothing here: send the mask that is white where the picture is replaced"
            )
        image = decoded(self.init_images[0], "init_images", bounds)
        mask = decoded(self.mask, "mask", bounds) if self.mask else None
        return super().job(served, image=image, mask=mask, strength=self.denoising_strength, **more)


def routes(served: Served) -> APIRouter:
    """The routes of a server."""
    router, name = APIRouter(prefix="/sdapi/v1", route_class=Route), served.settings.model
    mine: set[Ticket] = set()

    @router.post("/txt2img")
    async def from_text(request: Request) -> Response:
        return await _answer(served, request, await read(request, Asked), mine)

    @router.post("/img2img")
    async def from_picture(request: Request) -> Response:
        return await _answer(served, request, await read(request, AskedOfPicture), mine)

    @router.get("/progress")
    async def progress(skip_current_image: bool = False) -> JSONResponse:
        return JSONResponse(_progress(served, with_picture=not skip_current_image))

    @router.post("/interrupt")
    async def interrupt() -> JSONResponse:
        running = (one for one in served.queue.tickets() if one in mine and one.state == RUNNING)
        if (ticket := next(running, None)) is not None:
            served.queue.leave(ticket)
        return JSONResponse({})

    @router.get("/options")
    async def options() -> JSONResponse:
        return JSONResponse({"sd_model_checkpoint": name, "samples_format": "png", "sd_vae": "Automatic"})

    @router.post("/options")
    async def set_options(request: Request) -> JSONResponse:
        options = await read(request, Options)
        _check_checkpoint(options.model_dump(), served)
        return JSONResponse({})

    @router.get("/samplers")
    async def samplers() -> JSONResponse:
        return JSONResponse([{"name": served.about.sampler, "aliases": [], "options": {}}])

    @router.get("/schedulers")
    async def schedulers() -> JSONResponse:
        return JSONResponse([{"name": "automatic", "label": "Automatic"}])

    @router.get("/sd-models")
    async def models() -> JSONResponse:
        facts = {"title": name, "model_name": name, "hash": None, "sha256": None, "filename": name, "config": None}
        return JSONResponse([facts])

    @router.get("/loras")
    async def loras() -> JSONResponse:
        return JSONResponse([{"name": one, "alias": one, "path": one, "metadata": {}} for one in served.about.loras])

    return router


class Options(Body):
    """Settings of the web UI, of which one means something here."""

    sd_model_checkpoint: str | None = None


async def _answer(served: Served, request: Request, asked: Asked, mine: set[Ticket]) -> Response:
    """The pictures of a request, whose ticket is among ``mine`` meanwhile; none where that was interrupted."""
    ticket = served.queue.submit(served.job(asked.job(served)), Form(), previews=True)
    mine.add(ticket)
    try:
        with contextlib.suppress(GoneError):
            done(await served.awaited(request, ticket))
    finally:
        mine.remove(ticket)
    given = asked.model_dump(exclude={"init_images", "mask", "override_settings"})
    return JSONResponse(
        {"images": list(map(inline, ticket.files)), "parameters": given, "info": json.dumps(_info(served, ticket))},
        headers={"Cache-Control": "no-store"},
    )


def _info(served: Served, ticket: Ticket) -> dict[str, Any]:
    """What the web UI says of pictures; the sampler is the one that painted, whatever was asked for."""
    job, seeds = ticket.job, list(ticket.job.seeds)
    told = [_told(served, ticket, seed) for seed in seeds]
    return {
        "prompt": job.prompt, "all_prompts": [job.prompt] * job.count, "negative_prompt": job.negative_prompt or "",
        "seed": job.seed, "all_seeds": seeds, "width": ticket.size[0], "height": ticket.size[1],
        "sampler_name": served.about.sampler, "cfg_scale": job.cfg_scale,
        "steps": job.steps or ticket.steps // job.count, "batch_size": job.count,
        "sd_model_name": served.settings.model, "infotexts": told, "job_timestamp": time.strftime("%Y%m%d%H%M%S"),
    }  # fmt: skip


def _told(served: Served, ticket: Ticket, seed: int) -> str:
    """What clients write into the file of a picture, so that it can be painted again."""
    job = ticket.job
    return f"{job.prompt}\nNegative prompt: {job.negative_prompt or ''}\n" + ", ".join(
        f"{name}: {value}"
        for name, value in (
            ("Steps", job.steps or ticket.steps // job.count), ("Sampler", served.about.sampler),
            ("CFG scale", job.cfg_scale), ("Seed", seed), ("Size", "x".join(map(str, ticket.size))),
            ("Model", served.settings.model), ("Denoising strength", job.strength),
        )
        if value is not None
    )  # fmt: skip


def _progress(served: Served, *, with_picture: bool) -> dict[str, Any]:
    """How far the first job that runs is, and how many wait."""
    tickets = served.queue.tickets()
    running = next((one for one in tickets if one.state == RUNNING), None)
    waiting = sum(one.state == WAITING for one in tickets)
    step, steps = (running.step, running.steps) if running else (0, 0)
    part = step / steps if steps else 0.0
    seconds = running.seconds if running else 0.0
    state = {
        "skipped": False, "interrupted": False, "stopping_generation": False, "job": running.name if running else "",
        "job_count": waiting + bool(running), "job_timestamp": "0", "job_no": 0, "sampling_step": step,
        "sampling_steps": steps,
    }  # fmt: skip
    picture = inline(running.preview) if running and with_picture and running.preview else None
    left = seconds * (1 - part) / part if part else 0.0
    return {"progress": part, "eta_relative": left, "state": state, "current_image": picture, "textinfo": None}


def _times(number: int | None, served: Served) -> int:
    most = served.settings.bounds.count
    if number is not None and not 1 <= number <= most:
        raise UsageError(f"batch_size and n_iter may be 1 to {most}")
    return 1 if number is None else number


def _check_checkpoint(options: dict[str, Any], served: Served) -> None:
    name = options.get("sd_model_checkpoint")
    if name is not None and name != served.settings.model:
        raise UsageError(f"there is no checkpoint {str(name)[:100]!r}: this server has {served.settings.model}")
