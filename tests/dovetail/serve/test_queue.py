"""The queue: in order, bounded, each job once; and what happens to jobs that nobody waits for."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator, Sequence
from typing import ClassVar

import pytest
import torch
from PIL import Image

from dovetail.compiler.errors import DoesNotFitError, UsageError
from dovetail.jobs.job import Job
from dovetail.jobs.steps import OnStep
from dovetail.serve.work.queue import Queue, QueueFullError
from dovetail.serve.work.ticket import ClosingError, Ticket
from testbed.serving import Brush, wait


def finished(*tickets: Ticket) -> None:
    wait(lambda: all(one.is_over for one in tickets))


@pytest.fixture
def held() -> Iterator[tuple[Queue, Brush]]:
    """A queue whose painter waits before each step until the gate is opened."""
    brush = Brush(gate=threading.Semaphore(0))
    queue = Queue([brush], 3)
    yield queue, brush
    brush.gate = None
    queue.close()


def started(queue: Queue, seed: int = 0) -> Ticket:
    ticket = queue.submit(Job("a", seed=seed))
    wait(lambda: ticket.state == "running")
    return ticket


def test_jobs_are_painted_in_their_order_each_once() -> None:
    brush = Brush()
    queue = Queue([brush], 100)
    tickets = [queue.submit(Job("a", seed=seed)) for seed in range(40)]
    finished(*tickets)
    assert [job.seed for job in brush.painted] == list(range(40))
    assert {one.state for one in tickets} == {"done"}


def test_a_job_whose_size_is_rounded_says_so_once(caplog: pytest.LogCaptureFixture) -> None:
    class Rounding(Brush):
        def run(self, job: Job, on_step: OnStep) -> list[Image.Image]:
            return [one.crop((0, 0, one.width // 8 * 8, one.height // 8 * 8)) for one in super().run(job, on_step)]

    queue = Queue([Rounding()], 9)
    finished(*(queue.submit(Job("a", width=width, height=height, count=2)) for width, height in ((64, 32), (64, 35))))
    wait(lambda: bool(caplog.messages))
    queue.close()
    queue.join()
    (said,) = caplog.messages
    assert said.startswith("a job: 64 x 35 was asked for and 64 x 32 is painted: this pipeline rounds sizes")


def test_several_painters_share_one_queue_and_paint_each_job_once() -> None:
    brushes = [Brush(), Brush(), Brush()]
    queue = Queue(brushes, 200)
    tickets = [queue.submit(Job("a", seed=seed)) for seed in range(150)]
    finished(*tickets)
    assert sorted(job.seed for brush in brushes for job in brush.painted) == list(range(150))


def test_more_than_may_wait_are_told_when_to_come_again(held: tuple[Queue, Brush]) -> None:
    queue, _ = held
    started(queue)
    for _ in range(3):
        queue.submit(Job("a"))
    with pytest.raises(QueueFullError) as told:
        queue.submit(Job("a"))
    assert told.value.after >= 1


def test_a_job_that_nobody_waits_for_is_taken_out_or_ends_within_a_step(held: tuple[Queue, Brush]) -> None:
    queue, brush = held
    first, second, third = started(queue), queue.submit(Job("a", seed=1)), queue.submit(Job("a", seed=2))
    queue.leave(second)
    assert second.state == "gone"
    queue.leave(first)
    assert brush.gate is not None
    brush.gate.release()  # one step, and no more of the first job
    finished(first)
    assert first.state == "gone"
    brush.gate.release(20)
    finished(third)
    assert [job.seed for job in brush.painted] == [2]


def test_what_does_not_fit_is_refused_before_the_jobs_that_wait_and_at_once_when_it_comes_again() -> None:
    def refuse(job: Job) -> None:
        if job.width == 4096:
            raise DoesNotFitError("4096 does not fit on sim0", ways="ask for 512")

    brush = Brush(gate=threading.Semaphore(0), refuse=refuse)
    queue = Queue([brush], 9)
    first = started(queue)
    others = [queue.submit(Job("a", seed=seed)) for seed in (1, 2)]
    large = queue.submit(Job("a", width=4096))
    assert brush.gate is not None
    brush.gate.release(5)
    finished(first, large)
    assert str(large.error) == "4096 does not fit on sim0: ask for 512"
    assert not any(one.is_over for one in others)
    with pytest.raises(DoesNotFitError, match="ask for 512"):
        queue.submit(Job("another", width=4096, seed=9))
    brush.gate.release(50)
    finished(*others)
    assert [job.seed for job in brush.painted] == [0, 1, 2]


def test_jobs_of_new_kinds_that_come_and_go_hold_up_no_job_that_is_checked() -> None:
    width = 1

    def refuse(job: Job) -> None:
        nonlocal width
        if job.width:
            width += 1
            queue.submit(Job("a", width=width))
            raise UsageError("of no use")

    brush = Brush(refuse=refuse)
    queue = Queue([brush], 9)
    finished(queue.submit(Job("a")))
    queue.submit(Job("a", width=1))
    mine = [queue.submit(Job("a", seed=seed)) for seed in (1, 2, 3)]
    finished(*mine)
    queue.close()
    queue.join(5)
    assert [job.seed for job in brush.painted if job.width is None] == [0, 1, 2, 3]


@pytest.mark.parametrize("error", [RuntimeError("broken"), torch.OutOfMemoryError("full"), UsageError("wrong")])
def test_a_job_that_fails_takes_no_other_with_it(error: Exception) -> None:
    def fail(job: Job) -> None:
        if job.seed == 1:
            raise error

    queue = Queue([Brush(fail=fail)], 9)
    tickets = [queue.submit(Job("a", seed=seed)) for seed in range(3)]
    finished(*tickets)
    assert [one.state for one in tickets] == ["done", "failed", "done"]
    assert tickets[1].error is error
    assert error.__traceback__ is None, "its frames hold what was computed"


def test_a_job_that_cannot_be_planned_is_painted_all_the_same() -> None:
    def refuse(job: Job) -> None:
        raise RuntimeError("no trace of it")

    queue = Queue([Brush(refuse=refuse)], 9)
    ticket = queue.submit(Job("a"))
    finished(ticket)
    assert ticket.state == "done"


class Wide(Brush):
    """Paints several jobs by one call."""

    def run_together(self, jobs: Sequence[Job], on_step: OnStep) -> list[list[Image.Image]]:
        self.calls.append([job.seed for job in jobs])
        if 13 in self.calls[-1]:
            raise RuntimeError("not together")
        return [self.run(job, on_step) for job in jobs]

    calls: ClassVar[list[list[int]]] = []


def test_jobs_next_to_each_other_that_differ_in_prompt_and_seed_alone_are_one_call_where_that_is_asked_for() -> None:
    Wide.calls.clear()
    brush = Wide(gate=threading.Semaphore(0))
    queue = Queue([brush], 99, batch=3)
    first = started(queue, 100)
    jobs = [*(Job(str(seed), seed=seed) for seed in range(5)), Job("a", seed=7, width=32), Job("b", seed=8)]
    jobs += [Job("a", seed=12), Job("b", seed=13), Job("c", seed=14)]
    tickets = [queue.submit(job) for job in jobs]
    queue.leave(tickets[4])
    gate, brush.gate = brush.gate, None
    assert gate is not None
    gate.release()
    finished(first, *tickets)
    assert [job.seed for job in brush.painted if job.seed != 100] == [0, 1, 2, 3, 7, 8, 12, 13, 14]
    assert Wide.calls == [[0, 1, 2], [8, 12, 13]]
    assert [one.state for one in tickets] == ["done"] * 4 + ["gone"] + ["done"] * 5


def test_at_the_end_what_runs_is_finished_and_what_waits_is_told(held: tuple[Queue, Brush]) -> None:
    queue, brush = held
    first, second = started(queue), queue.submit(Job("a"))
    queue.close()
    assert isinstance(second.error, ClosingError)
    assert not first.is_over
    assert brush.gate is not None
    brush.gate.release(5)
    finished(first)
    queue.join(5)
    assert first.state == "done"
    with pytest.raises(ClosingError):
        queue.submit(Job("a"))


def test_who_watches_a_job_is_told_of_each_change_and_of_its_end() -> None:
    async def watch() -> list[str]:
        queue = Queue([Brush(steps=3)], 4)
        ticket = queue.submit(Job("a"))
        seen = [ticket.state async for _ in ticket.changes()]
        await ticket.over()
        return seen

    seen = asyncio.run(asyncio.wait_for(watch(), 10))
    assert seen[-1] == "done"
    assert "done" not in seen[:-1]
