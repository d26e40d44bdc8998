"""A server to be tested: a painter that paints at once or when it is told to, and a server on a port of its own."""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from PIL import Image

from dovetail.jobs.about import About
from dovetail.jobs.bounds import Bounds
from dovetail.jobs.facts import DeviceFacts, Facts
from dovetail.jobs.job import Job
from dovetail.jobs.runner import OnStep, Painter
from dovetail.serve import server
from dovetail.serve.api.served import Served
from dovetail.serve.app import application
from dovetail.serve.guard.connections import connections
from dovetail.serve.server import Server, address_of, bound
from dovetail.serve.work.settings import Settings


@dataclass(eq=False)
class Brush:
    """Paints a picture whose colour is its seed; ``gate`` holds it before each step, ``refuse`` and ``fail`` raise."""

    steps: int = 4
    gate: threading.Semaphore | None = None
    refuse: Callable[[Job], None] = lambda job: None
    fail: Callable[[Job], None] = lambda job: None
    painted: list[Job] = field(default_factory=list)
    checked: list[Job] = field(default_factory=list)

    def run(self, job: Job, on_step: OnStep) -> list[Image.Image]:
        """Paints the pictures of a job."""
        for step in range(self.steps + 1):
            if self.gate is not None:
                self.gate.acquire(timeout=10)
            on_step(step, self.steps, None)
        self.fail(job)
        self.painted.append(job)
        size = job.width or 16, job.height or 16
        return [Image.new("RGB", size, (seed % 256, seed // 256 % 256, 0)) for seed in job.seeds]

    def check(self, job: Job) -> None:
        """Refuses what it is told to refuse."""
        self.checked.append(job)
        self.refuse(job)

    def facts(self) -> Facts:
        """One device, half full."""
        return Facts({"sampling": 0.5}, {"sim0": DeviceFacts(512, 768, 800, 1024)}, {"read": 1})


def wait(condition: Callable[[], bool]) -> None:
    """Waits until something is so; raises AssertionError where it does not become so."""
    ending = time.monotonic() + 10
    while not condition():
        assert time.monotonic() < ending, "nothing happened"
        time.sleep(0.002)


def served_by(painters: Sequence[Painter], **settings: Any) -> Served:
    """A server of some painters; it knows one LoRA."""
    settings = {"port": 0, "bounds": Bounds(side=256, pixels=256 * 256, steps=20, count=4, bytes=200_000), **settings}
    about = About(["blue"], "TestScheduler", ["image", "mask"], (16, 16), 4)
    return server.served_by(painters, about, Settings(**settings))


@contextlib.contextmanager
def running(served: Served) -> Iterator[str]:
    """A server at a port of its own; gives its address."""
    with bound(served.settings) as listening:
        made = Server(application(served), served.queue.close, connections(served.settings.head))
        thread = threading.Thread(target=made.run, kwargs={"sockets": [listening]}, daemon=True)
        thread.start()
        try:
            yield address_of(listening)
        finally:
            made.end()
            thread.join(20)
            served.queue.join(20)
