"""A pool of replicas: one line of jobs before them, each of which goes to the next that is free."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import FIRST_EXCEPTION, wait
from functools import partial
from types import TracebackType
from typing import TYPE_CHECKING

from pydantic import TypeAdapter

from ...compiler.errors import DovetailError
from ..bounds import Bounds
from ..facts import Facts
from ..job import Job
from ..steps import OnStep
from .child import COMMAND
from .promised import Promised, Waiting
from .seat import Seat
from .tally import Tally

if TYPE_CHECKING:
    from PIL import Image

    from ..runner import Opening

_LINES = 1000
"""So many different lines of what replicas write are known; each is passed on once."""


def _unheard(done: int, total: int, latents: object) -> None:
    """Tells nobody of a step."""


class Replicas:
    """Processes of this machine, each with a whole copy of a pipeline, which paint jobs.

    A process that ends is replaced, and its job goes to another one; a job that ends two of them fails. All of them end
    with `close`, and with this process, however that ends.

    Args:
        openings: how each is opened, by what it is called.
        bounds: the largest job that is taken.
        prepares: whether each is ready only when it has planned a picture of which nothing is said, and has its weights
            in place.
        told: is given what is to be known of them, a line each: what they warn of, and that one has ended.
        command: what starts a process, which is one that `child.serve` makes of it.
    """

    def __init__(
        self, openings: Mapping[str, Opening], bounds: Bounds | None = None, *,
        prepares: bool = False, told: Callable[[str], None] = lambda _: None,
        command: Sequence[str] = COMMAND,
    ) -> None:  # fmt: skip
        from ..runner import Opening  # which takes seconds to import, and a child does without

        self._waiting, self._tally = Waiting(len(openings)), Tally()
        self._told = told
        self._heard: set[str] = set()
        self._changing = threading.Lock()
        self._is_closed = False
        limits = TypeAdapter(Bounds).dump_python(bounds or Bounds(), mode="json")
        self.seats: list[Seat] = []
        for name, one in openings.items():
            opening = TypeAdapter(Opening).dump_python(one, mode="json")
            setup = {"opening": opening, "bounds": limits, "prepares": prepares}
            tell = partial(self._tell, name)
            self.seats.append(Seat(name, command, setup, self._waiting, self._tally, tell, self._gone))

    def __enter__(self) -> Replicas:
        """Starts all of them, and waits until they are ready; raises the error of the first that cannot be."""
        try:
            self._start()
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Ends all of them."""
        self.close()

    def submit(self, job: Job, on_step: OnStep = _unheard, *, latents: bool = False) -> Promised:
        """The pictures of a job, as a future: cancelling it ends the job within a step.

        Args:
            job: what is to be painted.
            on_step: is told of each step, by a thread of ours; what it raises ends the job, and is its error.
            latents: whether it is told what there is of the picture then.
        """
        return self._put(Promised(job, on_step, latents=latents))

    def run(self, job: Job, on_step: OnStep = _unheard) -> list[Image.Image]:
        """Paints the pictures of a job, and waits for them; raises its error, and what ``on_step`` raises."""
        return self._wait(self.submit(job, on_step, latents=True))

    def check(self, job: Job) -> None:
        """Has a replica plan a job, before all jobs that wait; raises as `Runner.check` does."""
        self._wait(self._put(Promised(job, _unheard, checks=True), first=True))

    def facts(self) -> Facts:
        """What all of them did since this was asked last, and how full their devices are."""
        return self._tally.taken()

    def close(self) -> None:
        """Ends all processes and waits for that; nothing is painted any more. Can be called again."""
        with self._changing:
            self._is_closed = True
        for promised in self._waiting.drain():
            promised.cancel()
        for seat in self.seats:  # first each is told, so that none is left where the waiting is interrupted
            seat.let_go()
        self._waiting.wake()
        for seat in self.seats:
            seat.end()

    def _start(self) -> None:
        for seat in self.seats:
            seat.start()
        done, _ = wait([seat.ready for seat in self.seats], return_when=FIRST_EXCEPTION)
        for ready in done:
            ready.result()

    def _put(self, promised: Promised, *, first: bool = False) -> Promised:
        with self._changing:
            if self._is_closed:
                promised.cancel()
            elif (lost := self._lost()) is not None:
                promised.fail(lost)
            else:
                self._waiting.put(promised, first=first)
        return promised

    @staticmethod
    def _wait(promised: Promised) -> list[Image.Image]:
        try:
            return promised.result()
        except BaseException:
            promised.cancel()
            raise

    def _lost(self) -> DovetailError | None:
        """Why no replica is left, if none is."""
        errors = [seat.lost for seat in self.seats]
        return errors[-1] if all(errors) else None

    def _gone(self) -> None:
        """A replica has ended for good: where it was the last one, nobody waits any more."""
        with self._changing:
            lost = self._lost()
            left = self._waiting.drain() if lost is not None else []
        for promised in left:
            promised.fail(DovetailError(f"no replica is left: {lost}"))

    def _tell(self, name: str, line: str) -> None:
        with self._changing:
            if line in self._heard or not line.strip():
                return
            if len(self._heard) < _LINES:
                self._heard.add(line)
        self._told(f"{name}: {line}")
