"""The pictures of a job that some replica is to paint, and the jobs that wait for one."""

from __future__ import annotations

import contextlib
import threading
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future, InvalidStateError
from typing import TYPE_CHECKING

from ..job import Job
from ..steps import OnStep

if TYPE_CHECKING:
    from PIL import Image

    Pictures = Future[list[Image.Image]]
else:
    Pictures = Future


class Promised(Pictures):
    """The pictures of a job, once a replica has painted them. Cancelling it ends the job within a step.

    ``deaths`` counts the replicas that ended while they had it, and ``replica`` names the one that has it now. One that
    ``checks`` has a replica plan the job, and paints nothing.
    """

    def __init__(self, job: Job, on_step: OnStep, *, latents: bool = False, checks: bool = False) -> None:
        super().__init__()
        self.job, self.on_step, self.latents, self.checks = job, on_step, latents, checks
        self.deaths = 0
        self.replica = ""
        self._stop: Callable[[], object] = bool
        self._changing = threading.RLock()  # who is told that it is over may ask to cancel it

    def begins(self, replica: str, stop: Callable[[], object]) -> bool:
        """A replica takes the job, which ``stop`` ends; says whether somebody still wants it."""
        with self._changing:
            self.replica, self._stop = replica, stop
            return not self.done()

    def cancel(self) -> bool:
        """Has nobody wait for it any more; whether it was not over before."""
        with self._changing:
            if self.done():
                return self.cancelled()
            super().cancel()
            self.set_running_or_notify_cancel()  # else who waits for several is not told
        self._stop()
        return True

    def keep(self, pictures: list[Image.Image]) -> None:
        """It has been painted."""
        with self._changing, contextlib.suppress(InvalidStateError):
            self.set_result(pictures)

    def fail(self, error: BaseException) -> None:
        """It cannot be painted."""
        with self._changing, contextlib.suppress(InvalidStateError):
            self.set_exception(error)


class Waiting:
    """Jobs that no replica has yet, first come first served.

    Args:
        takers: how many replicas take jobs.
    """

    def __init__(self, takers: int = 1) -> None:
        self.takers = max(1, takers)
        self._jobs: deque[Promised] = deque()
        self._there = threading.Condition()

    def __len__(self) -> int:
        return len(self._jobs)

    def put(self, promised: Promised, *, first: bool = False) -> None:
        """Has a job wait, behind all others or before them."""
        with self._there:
            (self._jobs.appendleft if first else self._jobs.append)(promised)
            self._there.notify()

    def take(self, seconds: float) -> Promised | None:
        """The next job that somebody wants, or None where there is none for so long."""
        with self._there:
            self._there.wait_for(self._next, seconds)
            return self._jobs.popleft() if self._next() else None

    def likely(self) -> Job | None:
        """The job that who took one now will likely take next, where each of the others takes one before.

        That is so of replicas that are equally quick. None where fewer jobs wait, and for a job with a picture, which
        would be sent twice.
        """
        with self._there:
            wanted = [one for one in self._jobs if not one.done() and not one.checks]
        found = wanted[self.takers - 1].job if len(wanted) >= self.takers else None
        return None if found is None or found.image is not None else found

    def wake(self) -> None:
        """Has everybody look who waits for a job."""
        with self._there:
            self._there.notify_all()

    def drain(self) -> list[Promised]:
        """All jobs, none of which waits any more."""
        with self._there:
            found = list(self._jobs)
            self._jobs.clear()
        return found

    def _next(self) -> bool:
        while self._jobs and self._jobs[0].done():
            self._jobs.popleft()
        return bool(self._jobs)
