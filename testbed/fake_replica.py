"""A replica whose pipeline takes no time to open: `python -m testbed.fake_replica`. Its prompts say what it does.

A picture has the seed in its red and the number of the process's jobs in its blue. Prompts are words, which are obeyed
one after another: ``die`` ends the process as a kill does, ``once FILE`` only where the file is not there yet, and
makes it; ``fail`` raises, ``slow`` makes a hundred steps of a twentieth of a second, ``warn`` writes to standard error.
"""

from __future__ import annotations

import os
import signal
import sys
import time
from pathlib import Path
from typing import Any

from PIL import Image

from dovetail.compiler.errors import DoesNotFitError, UsageError
from dovetail.jobs.facts import DeviceFacts, Facts
from dovetail.jobs.job import Job
from dovetail.jobs.replicas.child import serve
from dovetail.jobs.steps import OnStep


class Fake:
    """Paints pictures of one colour."""

    def __init__(self) -> None:
        self.jobs = 0

    def facts(self) -> Facts:
        return Facts({"sampling": 1.0}, {"cpu": DeviceFacts(used=10, peak=20)})

    def check(self, job: Job) -> None:
        if "huge" in job.prompt:
            raise DoesNotFitError("it does not fit", ways="ask for less")

    def run(self, job: Job, on_step: OnStep) -> list[Image.Image]:
        self.jobs += 1
        words = job.prompt.split()
        if "once" in words:
            file = Path(words[words.index("once") + 1])
            if file.exists():
                words = []
            file.touch()
        if "die" in words:
            os.kill(os.getpid(), signal.SIGKILL)
        if "fail" in words:
            raise UsageError("it was to fail")
        if "warn" in words:
            print("be warned", file=sys.stderr, flush=True)
        steps = 100 if "slow" in words else 2
        for step in range(steps + 1):
            on_step(step, steps, None)
            time.sleep(0.05 if "slow" in words else 0)
        return [Image.new("RGB", (3, 2), (seed % 256, 0, self.jobs)) for seed in job.seeds]


def opened(said: dict[str, Any]) -> Fake:
    """The fake, unless its model says that it cannot be opened, or ends while it is."""
    model = said["opening"]["model"]
    if model == "refuse":
        raise UsageError("there is no such model")
    if model == "die":
        print("no memory is left", file=sys.stderr, flush=True)
        os.kill(os.getpid(), signal.SIGKILL)
    return Fake()


if __name__ == "__main__":
    serve(opened)
