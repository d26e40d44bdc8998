"""The queue of jobs before one painter or several: bounded, in order, and each job painted once or not at all."""

from __future__ import annotations

import contextlib
import io
import logging
import math
import threading
import time
from collections import OrderedDict, deque
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from itertools import islice, takewhile
from typing import TYPE_CHECKING, Any

from ...cli.output.picture import other_size
from ...compiler.errors import DoesNotFitError, UsageError
from ...jobs.job import Job
from ...jobs.runner import Batching, Painter
from .measures import Measures
from .preview import Preview
from .ticket import DONE, FAILED, GONE, RUNNING, ClosingError, Form, GoneError, Ticket

if TYPE_CHECKING:
    import torch
    from PIL import Image

logger = logging.getLogger(__name__)

PREVIEWS, TOLD = 0.25, 0.05
"""Seconds between two previews of a picture, and between two words of its steps."""
_KNOWN = 256
"""How many kinds of calls are remembered to fit or not."""


class QueueFullError(Exception):
    """As many jobs wait as may; ``after`` are the seconds after which another try is worth it."""

    def __init__(self, after: int) -> None:
        super().__init__(f"as many jobs wait as may: try again in {after} s")
        self.after = after


class Queue:
    """Jobs that wait for painters, each of which has a thread of its own.

    Args:
        painters: what paints.
        waiting: how many jobs may wait.
        measures: is told what happens.
        batch: how many jobs that differ in prompt and seed alone one call paints, where a painter can.
    """

    def __init__(
        self, painters: Sequence[Painter], waiting: int, measures: Measures | None = None, batch: int = 1
    ) -> None:
        self.measures = measures or Measures()
        self.preview = Preview()
        self._most, self._batch = waiting, batch
        self._changed = threading.Condition()
        self._waiting: deque[Ticket] = deque()
        self._running: list[Ticket] = []
        self._verdicts: OrderedDict[tuple[Any, ...], str] = OrderedDict()
        """Why kinds of calls find no room; nothing of those that do."""
        self._seconds = 1.0
        self.is_closing = False
        self._threads = [
            threading.Thread(target=self._work, args=(one,), name=f"dovetail painter {number}", daemon=True)
            for number, one in enumerate(painters)
        ]
        for thread in self._threads:
            thread.start()

    def submit(self, job: Job, form: Form | None = None, *, previews: bool = False) -> Ticket:
        """Has a job be painted after those that wait.

        Raises QueueFullError where too many wait, ClosingError where the server ends, and at once what an earlier job
        of such a call was refused with.
        """
        key = _kind(job)
        with self._changed:
            if key and self._verdicts.get(key):
                raise DoesNotFitError(self._verdicts[key])
            if self.is_closing:
                raise ClosingError
            if len(self._waiting) >= self._most:
                self.measures.refused.inc()
                raise QueueFullError(self._retry_after())
            ticket = Ticket(job, form or Form(), previews, is_checked=key is not None and key in self._verdicts)
            self._waiting.append(ticket)
            self._changed.notify_all()
        return ticket

    def leave(self, ticket: Ticket) -> None:
        """Has a job that nobody waits for end: at once where it waits, within a step where it runs."""
        ticket.leave()
        with self._changed:
            if ticket not in self._waiting:
                return
            self._waiting.remove(ticket)
        self._end(ticket, GONE)

    def tickets(self) -> list[Ticket]:
        """The jobs that run, and those that wait, in their order."""
        with self._changed:
            return [*self._running, *self._waiting]

    def close(self) -> None:
        """Begins no job any more: those that run are finished, those that wait are told."""
        with self._changed:
            self.is_closing = True
            left = list(self._waiting)
            self._waiting.clear()
            self._changed.notify_all()
        for ticket in left:
            self._end(ticket, FAILED, error=ClosingError())

    def join(self, seconds: float | None = None) -> None:
        """Waits until what runs is finished, after `close`; so many seconds at most, for all threads together."""
        end = None if seconds is None else time.monotonic() + seconds
        for thread in self._threads:
            thread.join(None if end is None else max(0.0, end - time.monotonic()))

    def _work(self, painter: Painter) -> None:
        """Checks a job and paints one in turn, where there are both, so that neither holds up the other."""
        most = self._batch if isinstance(painter, Batching) else 1
        has_checked = False
        while True:
            with self._changed:
                while not self._waiting and not self.is_closing:
                    self._changed.wait()
                if self.is_closing:
                    return
                unchecked = next((one for one in self._waiting if not one.is_checked), None)
                checked = next((one for one in self._waiting if one.is_checked), None)
                if unchecked and not (has_checked and checked):
                    unchecked.is_checked = has_checked = True
                elif checked:
                    tickets, unchecked, has_checked = self._begin(checked, most), None, False
            self._check(painter, unchecked) if unchecked else self._paint(painter, tickets)

    def _begin(self, first: Ticket, most: int) -> list[Ticket]:
        """Takes a job that waits, and those next to it that one call can paint with it."""
        key, after = _batch_key(first.job), list(self._waiting)[self._waiting.index(first) + 1 :]
        alike = takewhile(lambda one: key is not None and _batch_key(one.job) == key, after)
        tickets = [first, *islice(alike, most - 1)]
        for ticket in tickets:
            self._waiting.remove(ticket)
        for ticket in tickets:
            ticket.state, ticket.begun = RUNNING, time.time()
        self._running += tickets
        return tickets

    def _check(self, painter: Painter, ticket: Ticket) -> None:
        """Plans a job that waits before any other is painted, so that what cannot be is refused soon.

        A job that cannot be planned is painted, or fails, in its turn.
        """
        problem: BaseException | None = None
        try:
            painter.check(ticket.job)
        except (UsageError, DoesNotFitError) as error:
            problem = _without_frames(error)
        except Exception as error:
            logger.info("a job cannot be planned: %s", error)
            return
        with self._changed:
            if not isinstance(problem, UsageError):
                self._note(_kind(ticket.job), "" if problem is None else str(problem))
            if problem is None or ticket not in self._waiting:
                return
            self._waiting.remove(ticket)
        self._end(ticket, FAILED, error=problem)

    def _note(self, key: tuple[Any, ...] | None, verdict: str) -> None:
        """Remembers why a kind of calls finds no room, or that it does."""
        if key is None:
            return
        self._verdicts[key] = verdict
        self._verdicts.move_to_end(key)
        if len(self._verdicts) > _KNOWN:
            self._verdicts.popitem(last=False)

    def _paint(self, painter: Painter, tickets: Sequence[Ticket]) -> None:
        """Paints jobs by one call, where that goes, else one after another."""
        for ticket in tickets:
            ticket.tell()
        painted: list[list[Image.Image]] | None = None
        if len(tickets) > 1 and isinstance(painter, Batching):
            told = [_Told(ticket, self.preview) for ticket in tickets]
            with contextlib.suppress(Exception):  # whatever it is, each is tried alone then
                painted = painter.run_together([one.job for one in tickets], partial(_told_to_all, told))
        for index, ticket in enumerate(tickets):
            self._finish(painter, ticket, painted[index] if painted else None)

    def _finish(self, painter: Painter, ticket: Ticket, pictures: list[Image.Image] | None) -> None:
        """Paints a job unless it is, and writes its pictures; whatever happens, it is over then, and nothing raised."""
        ended: dict[str, Any] = {}
        state = FAILED
        try:
            ticket.check()
            pictures = painter.run(ticket.job, _Told(ticket, self.preview)) if pictures is None else pictures
            ended = {"files": tuple(written(one, ticket.form) for one in pictures), "size": pictures[0].size}
            state = DONE
        except GoneError:
            state = GONE
        except BaseException as error:
            ended = {"error": _without_frames(error)}
        try:
            self.preview.end(ticket, pictures[-1] if state == DONE and pictures else None)
            self.measures.painted(painter)
        except Exception as error:  # which a picture is not lost for
            logger.warning("what was painted cannot be measured: %s", error, exc_info=error)
        with self._changed:
            self._running.remove(ticket)
        self._end(ticket, state, **ended)
        if state == DONE:
            _tell_size(ticket)
            self._seconds += 0.2 * (ticket.seconds - self._seconds)

    def _end(self, ticket: Ticket, state: str, **what: Any) -> None:
        ticket.end(state, **what)
        self.measures.ended(ticket)
        ticket.tell()

    def _retry_after(self) -> int:
        """The seconds until another job has room, as the last ones took."""
        return min(600, max(1, math.ceil(self._seconds / max(1, len(self._threads)))))


class _Told:
    """Is told of each step of a ticket's job; raises GoneError where nobody waits for it.

    Args:
        ticket: the job.
        preview: makes pictures of latents.
    """

    def __init__(self, ticket: Ticket, preview: Preview) -> None:
        self._ticket, self._preview = ticket, preview
        self._told = self._shown = time.monotonic()

    def __call__(self, step: int, steps: int, latents: torch.Tensor | None) -> None:
        ticket, now = self._ticket, time.monotonic()
        ticket.check()
        ticket.step, ticket.steps = step, steps
        if latents is not None:
            self._preview.note(ticket, latents)
        if ticket.previews and latents is not None and now - self._shown >= PREVIEWS:
            self._shown = now
            ticket.preview = self._preview.picture(latents, ticket.job) or ticket.preview
            ticket.preview_step = step
        if now - self._told >= TOLD or step in (0, steps):
            self._told = now
            ticket.tell()


def _told_to_all(told: Sequence[_Told], step: int, steps: int, latents: torch.Tensor | None) -> None:
    """Tells all jobs of one call of a step, each with its own latents; raises GoneError where nobody waits for any."""
    left = 0
    for index, tell in enumerate(told):
        try:
            tell(step, steps, latents if latents is None else latents[index : index + 1])
        except GoneError:
            left += 1
    if left == len(told):
        raise GoneError


def written(picture: Image.Image, form: Form) -> bytes:
    """A picture as the bytes of a file."""
    file = io.BytesIO()
    save = partial(picture.convert("RGB").save, file, format=form.kind)
    save() if form.kind == "png" else save(quality=form.quality)
    return file.getvalue()


def _kind(job: Job) -> tuple[Any, ...] | None:
    """What calls of equal plans have in common; None of one that takes its size from a picture."""
    if job.image is not None and not (job.width and job.height):
        return None
    plain = replace(job, prompt="", seed=0, count=1, image=b"" if job.image else None, mask=b"" if job.mask else None)
    steered = plain.negative_prompt is not None
    return (
        plain.width, plain.height, plain.steps, plain.guidance, plain.cfg_scale, steered, plain.loras,
        plain.image is not None, plain.mask is not None, plain.strength,
    )  # fmt: skip


def _batch_key(job: Job) -> tuple[Any, ...] | None:
    """What jobs that one call can paint have in common; None of one that is painted alone."""
    kind = _kind(job) if job.image is None and job.count == 1 else None
    return None if kind is None else (*kind, job.negative_prompt)


def _tell_size(ticket: Ticket) -> None:
    """Says of a job that is done where its pictures have another size than it asked for."""
    other = other_size(ticket.size, ticket.job.width, ticket.job.height)
    if other:
        logger.warning("a job: %s", other)


def _without_frames(error: BaseException) -> BaseException:
    """An error without the frames that raised it, which hold what was tried; what nobody foresaw is logged before."""
    if not isinstance(error, (UsageError, DoesNotFitError)):
        logger.warning("a job failed: %s", error, exc_info=error)
    error.__context__ = error.__cause__ = None
    return error.with_traceback(None)
