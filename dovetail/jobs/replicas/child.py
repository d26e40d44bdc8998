"""A replica: a process that holds one copy of a pipeline, paints what it is told, and ends with who started it.

It hears on its standard input and speaks on its standard output; what libraries print goes to standard error. When its
standard input ends, the process that started it has let it go or is no more, however it ended: then this one ends too.
"""

from __future__ import annotations

import logging
import os
import queue
import sys
import threading
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from pydantic import TypeAdapter

from ..bounds import Bounds
from ..expecting import Expecting
from ..facts import Facts, facts_of
from ..job import Job
from .payload import packed_latents, packed_pictures, told_of
from .wire import Message, Wire

if TYPE_CHECKING:
    import torch
    from PIL import Image

    from ..runner import Painter

COMMAND = (sys.executable, "-c", "from dovetail.jobs.replicas.child import main; main()")
"""What starts a replica."""

REFUSED = 3
"""The exit code of a replica that could not be opened, and has said why."""


class CancelledError(Exception):
    """Nobody wants the job any more that is being painted."""


class Replica:
    """What this process does: it paints one job after another, while a thread hears which are wanted."""

    def __init__(self, wire: Wire) -> None:
        self._wire = wire
        self._wanted: queue.SimpleQueue[Message] = queue.SimpleQueue()
        self._cancelled: set[int] = set()

    def listen(self) -> None:
        """Hears what is wanted and what is not any more, until there is nobody left who says so."""
        while (message := self._wire.hear()) is not None:
            if message.what == "cancel":
                self._cancelled.add(message.said["number"])
            else:
                self._wanted.put(message)
        os._exit(0)  # at once, also within a step: nobody waits for what is being painted

    def serve(self, painter: Painter) -> None:
        """Paints jobs for as long as this process lives."""
        while True:
            message = self._wanted.get()
            number = message.said["number"]
            try:
                self._do(painter, message, number)
            except CancelledError:
                self._wire.tell("cancelled", number=number)
            except Exception as error:
                logging.getLogger(__name__).debug("a job failed", exc_info=True)
                self._wire.tell("failed", number=number, error=told_of(error))

    def _do(self, painter: Painter, message: Message, number: int) -> None:
        job = Job.from_json(message.said["job"])
        if message.what == "check":
            painter.check(job)
            self._done(painter, number, [])
            return

        if isinstance(painter, Expecting):
            following = message.said.get("following")
            painter.expect(Job.from_json(following) if following else None)

        def on_step(done: int, total: int, latents: torch.Tensor | None) -> None:
            if number in self._cancelled:
                raise CancelledError
            shape, data = packed_latents(latents if message.said["latents"] else None)
            self._wire.tell("step", data, number=number, done=done, total=total, shape=shape)

        self._done(painter, number, painter.run(job, on_step))

    def _done(self, painter: Painter, number: int, pictures: Sequence[Image.Image]) -> None:
        kinds, data = packed_pictures(pictures)
        facts = TypeAdapter(Facts).dump_python(facts_of(painter), mode="json")
        self._wire.tell("done", data, number=number, pictures=kinds, facts=facts)


def opened(said: dict[str, Any]) -> Painter:
    """The pipeline that a replica is told to open."""
    from ..runner import Opening, Runner  # which takes seconds to import

    opening, bounds = TypeAdapter(Opening), TypeAdapter(Bounds)
    told = opening.validate_python(said["opening"])
    _begin_on(told.where.rig)
    runner = Runner(told, bounds.validate_python(said["bounds"]))
    if said["prepares"]:
        runner.prepare()
    return runner


def _begin_on(rig: str) -> None:
    """Has the first of a replica's cards be the one on which libraries put what names none: not the first of all."""
    from ...compiler.devices.rig import Rig

    first = next((one for one in Rig.parse(rig).gpus if not one.is_simulated), None) if rig else None
    if first is None:
        return
    import torch

    accelerator = torch.accelerator.current_accelerator()
    if accelerator is not None and accelerator.type == first.kind:
        torch.accelerator.set_device_index(first.index)


def serve(open_painter: Callable[[dict[str, Any]], Painter] = opened) -> None:
    """Is a replica, until whoever started this process lets it go."""
    wire = _own_wire()
    setup = wire.hear()
    if setup is None:
        return
    replica = Replica(wire)
    threading.Thread(target=replica.listen, name="dovetail-replica", daemon=True).start()
    try:
        painter = open_painter(dict(setup.said))
    except Exception as error:
        wire.tell("refused", error=told_of(error))
        os._exit(REFUSED)
    wire.tell("ready", pid=os.getpid())
    replica.serve(painter)


def _own_wire() -> Wire:
    """The pipes to whoever started this process, which nothing else in it reads or writes."""
    reads, writes = os.dup(0), os.dup(1)
    nothing = os.open(os.devnull, os.O_RDONLY)
    os.dup2(nothing, 0)
    os.close(nothing)
    os.dup2(2, 1)
    return Wire(os.fdopen(reads, "rb"), os.fdopen(writes, "wb"))


def main() -> None:
    """Is a replica of the pipeline that this process is told to open."""
    from ...cli.options.shared import set_up_logging
    from ...conventions.quiet_imports import without_notices

    set_up_logging(debug=False)
    with without_notices():
        serve()
