"""`dovetail serve`: a server that keeps a pipeline loaded."""

from __future__ import annotations

import importlib.util
import os
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ...compiler.errors import DovetailError, UsageError
from ...compiler.printable import printable
from ..options.bulk import count_of
from ..options.shared import Debug, Dtype, Where
from ..options.source import Source
from ..options.subject import Whole
from ..options.weights import WeightFiles

if TYPE_CHECKING:
    from ...jobs.about import About
    from ...jobs.runner import Opening, Painter
    from ...serve.work.settings import Settings

LISTENING, BOUNDS = "Who may ask", "How much they may ask for"
KEY = "DOVETAIL_API_KEY"
_NEEDED = ("fastapi", "uvicorn", "python_multipart", "prometheus_client")


def _who(*names: str, help: str, **more: Any) -> Any:
    return typer.Option(*names, help=help, rich_help_panel=LISTENING, **more)


def _most(*names: str, help: str, **more: Any) -> Any:
    return typer.Option(*names, help=help, rich_help_panel=BOUNDS, **more)


@dataclass(frozen=True)
class Listening:
    """Where a server listens and to whom, as it was typed."""

    host: Annotated[str, _who("--host", help="Address to listen at; one that others reach needs a key.")] = "127.0.0.1"
    port: Annotated[int, _who("--port", help="Port to listen at; 0 is any.", min=0, max=65535)] = 7860
    api_key_file: Annotated[
        Path | None, _who("--api-key-file", metavar="FILE", help=f"The key that clients send; or ${KEY}.")
    ] = None
    allow_host: Annotated[
        list[str] | None, _who("--allow-host", metavar="NAME", help="A further name of this server; repeatable.")
    ] = None
    cors: Annotated[
        list[str] | None, _who("--cors", metavar="ORIGIN", help="A site whose pages may ask; repeatable.")
    ] = None
    name: Annotated[str, _who("--name", metavar="NAME", help="What clients call the model.")] = ""

    def key(self) -> str:
        """The key, of the file or the environment; empty where neither is named.

        Raises UsageError for a bad file, and for a file or a variable that is there and has no key: whoever named it
        wants clients to send one.
        """
        name, text = f"${KEY}", os.environ.get(KEY)
        if self.api_key_file is not None:
            name = f"--api-key-file {self.api_key_file}"
            try:
                text = self.api_key_file.read_text(encoding="utf-8-sig")
            except (OSError, UnicodeDecodeError) as error:
                why = error.strerror if isinstance(error, OSError) else "it is no text in UTF-8"
                raise UsageError(f"--api-key-file: cannot read {self.api_key_file}: {why}") from error
        key = (text or "").strip()
        if text is not None and not key:
            raise UsageError(f"{name} has no key in it: write one of at least 8 characters there, or leave it out")
        return key


@dataclass(frozen=True)
class Allowed:
    """The largest job, and how many may wait, as it was typed."""

    queue: Annotated[
        int, _most("--queue", help="So many jobs may wait; more are told to come later.", min=1, max=100_000)
    ] = 32
    batch: Annotated[
        int,
        _most("--batch", help="Jobs that differ in prompt and seed by one call; may change last bits.", min=1, max=64),
    ] = 1
    max_side: Annotated[int, _most("--max-side", help="Pixels of the longest side.", min=1, max=32768)] = 4096
    max_pixels: Annotated[int, _most("--max-pixels", help="Pixels of a picture.", min=1, max=2**30)] = 2048 * 2048
    max_steps: Annotated[int, _most("--max-steps", help="Steps of a picture.", min=1, max=10_000)] = 200
    max_count: Annotated[int, _most("--max-count", help="Pictures of a job.", min=1, max=1000)] = 16
    replicas: Annotated[
        str,
        _most("--replicas", metavar="N|auto", help="Processes that generate, each with a whole copy."),
    ] = ""
    keep: Annotated[float, _most("--keep", help="Seconds that pictures with an address are kept.", min=1, max=1e6)] = (
        3600.0
    )


def serve(
    where: Where,
    listening: Listening,
    allowed: Allowed,
    weights: WeightFiles,
    source: Source,
    model: Whole = "",
    dtype: Dtype = None,
    lora_model_dir: Annotated[
        str, typer.Option("--lora-model-dir", metavar="FOLDER", help="LoRAs that clients may name.")
    ] = "",
    scheduler: Annotated[
        str, typer.Option("--scheduler", metavar="NAME", help="euler, euler_a, heun, dpm++2m, ddim, …")
    ] = "",
    threads: Annotated[
        int | None, typer.Option("-t", "--threads", min=1, help="Threads that the CPU computes with.")
    ] = None,
    debug: Debug = False,
) -> None:
    """Serve pictures: OpenAI's and AUTOMATIC1111's routes, and a page."""
    check_installed()
    from ...jobs.runner import Opening

    count_of(allowed.replicas)
    settings = _settings(listening, allowed, model)
    opening = Opening(model, where, source, weights, dtype, scheduler, lora_model_dir, threads)
    _serve(opening, settings, allowed.replicas)


def check_installed() -> None:
    """Raises DovetailError, with the command that installs it, where what a server needs is not there."""
    missing = [name for name in _NEEDED if importlib.util.find_spec(name) is None]
    if missing:
        raise DovetailError(
            f"serve needs {', '.join(missing)}, which {'is' if len(missing) == 1 else 'are'} not installed: "
            "pip install 'dovetail-diffusion[serve]'"
        )


def _settings(listening: Listening, allowed: Allowed, model: str) -> Settings:
    from ...jobs.bounds import Bounds
    from ...serve.work.settings import Settings

    bounds = Bounds(side=allowed.max_side, pixels=allowed.max_pixels, steps=allowed.max_steps, count=allowed.max_count)
    settings = Settings(
        model=listening.name or (Path(model).name if model else "dovetail-demo"),
        host=listening.host,
        port=listening.port,
        key=listening.key(),
        hosts=tuple(listening.allow_host or ()),
        origins=tuple(listening.cors or ()),
        waiting=allowed.queue,
        batch=allowed.batch,
        bounds=bounds,
        kept=allowed.keep,
    )
    settings.check()
    return settings


def _serve(opening: Opening, settings: Settings, replicas: str) -> None:
    """Loads the pipeline, and serves until a signal asks this process to end."""
    from ...serve.app import application
    from ...serve.server import address_of, bound, run, served_by

    with bound(settings) as listening, _painting(opening, settings, replicas) as (painters, about):
        served, address = served_by(painters, about, settings), address_of(listening)
        key = "; clients send the key" if settings.key else ""
        print(f"{settings.model} is served at {address} (OpenAI: {address}/v1){key}", file=sys.stderr, flush=True)
        run(application(served), served, listening, _tell)


def _tell(line: str) -> None:
    print(printable(line), file=sys.stderr, flush=True)


@contextmanager
def _painting(opening: Opening, settings: Settings, replicas: str) -> Iterator[tuple[list[Painter], About]]:
    """What paints while the server runs: this process, or as many replicas as were asked for."""
    from ...jobs.about import about
    from ...jobs.runner import Runner
    from ..output.progress import progress

    if not replicas:
        with progress("loading the pipeline"):
            runner = Runner(opening, settings.bounds)
            runner.prepare()
        yield [runner], runner.about()
        return
    from ...jobs.replicas import Replicas
    from ...jobs.replicas.openings import openings

    each = openings(opening, count_of(replicas), {})
    pool = Replicas(each, settings.bounds, prepares=True, told=_tell)
    with ExitStack() as stack:
        with progress(f"starting {len(each)} replicas"):
            stack.enter_context(pool)
        yield [pool] * len(each), about(opening.pipeline(), list(opening.shelf().files), opening.scheduler)
