from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import torch

from dovetail.compiler.errors import DoesNotFitError, DovetailError, SpecError, UsageError
from dovetail.jobs.job import Job
from dovetail.jobs.replicas import Replicas
from dovetail.jobs.replicas.payload import error_of, told_of
from dovetail.jobs.runner import Opening
from dovetail.recovery.recovery import is_out_of_memory
from testbed.processes import ends

FAKE = (sys.executable, "-m", "testbed.fake_replica")


@contextlib.contextmanager
def replicas(count: int, model: str = "", told: Callable[[str], None] = lambda _: None) -> Iterator[Replicas]:
    openings = {f"replica {number}": Opening(model=model) for number in range(1, count + 1)}
    with Replicas(openings, told=told, command=FAKE) as pool:
        yield pool


def pids(pool: Replicas) -> list[int]:
    return [seat.pid for seat in pool.seats if seat.pid is not None]


@pytest.mark.fifth
def test_jobs_are_painted_each_once_and_replicas_end_with_the_pool() -> None:
    steps: list[tuple[int, int]] = []
    with replicas(2) as pool:
        promised = [pool.submit(Job("a cat", seed=seed), lambda done, total, _: steps.append((done, total)))
                    for seed in range(20)]  # fmt: skip
        pictures = [one.result(20) for one in promised]
        assert [[one.getpixel((0, 0))[0] for one in some] for some in pictures] == [[seed] for seed in range(20)]
        assert steps.count((2, 2)) == 20
        assert len(pool.run(Job("several", count=3))) == 3
        facts = pool.facts()
        assert facts.phases == {"sampling": 21.0}
        assert facts.devices["cpu"].peak in (20, 40)  # of those that had a job
        assert not pool.facts().phases
        known = pids(pool)
    assert len(set(known)) == 2
    assert all(map(ends, known))


@pytest.mark.fifth
def test_a_replica_that_dies_is_replaced_and_its_job_goes_to_another(tmp_path: Path) -> None:
    said: list[str] = []
    with replicas(2, told=said.append) as pool:
        jobs = [Job(f"once {tmp_path / 'file'} die", seed=7), *(Job("a cat", seed=seed) for seed in range(10))]
        promised = [pool.submit(job) for job in jobs]
        assert [one.result(20)[0].getpixel((0, 0))[0] for one in promised] == [7, *range(10)]
        assert promised[0].deaths == 1
    assert any("SIGKILL" in line and "another one takes its place" in line for line in said)


@pytest.mark.fifth
def test_a_replica_that_is_killed_while_it_waits_is_replaced() -> None:
    with replicas(1) as pool:
        os.kill(pids(pool)[0], signal.SIGKILL)
        assert pool.run(Job("a cat", seed=3))[0].getpixel((0, 0))[0] == 3


@pytest.mark.fifth
def test_a_job_that_kills_two_replicas_fails_and_others_are_painted() -> None:
    with replicas(2) as pool:
        bad, good = pool.submit(Job("die")), [pool.submit(Job("a cat", seed=seed)) for seed in range(4)]
        with pytest.raises(DovetailError, match="2 replicas ended while they had it"):
            bad.result(20)
        assert [one.result(20)[0].getpixel((0, 0))[0] for one in good] == [0, 1, 2, 3]


@pytest.mark.fifth
def test_a_failing_job_keeps_the_class_of_its_error_and_the_replica() -> None:
    with replicas(1) as pool:
        before = pids(pool)
        with pytest.raises(UsageError, match="it was to fail"):
            pool.run(Job("fail"))
        with pytest.raises(DoesNotFitError, match="ask for less"):
            pool.check(Job("huge"))
        pool.check(Job("small"))
        assert pids(pool) == before


def test_an_error_that_crosses_names_the_field_that_is_wrong() -> None:
    for error, field in ((UsageError("no size", field="size"), "size"), (SpecError("no device"), "")):
        back = error_of(told_of(error))
        assert (type(back), str(back)) == (UsageError, str(error))
        assert back.field == field
    assert not isinstance(error_of(told_of(DoesNotFitError("too large"))), UsageError)


@pytest.mark.parametrize(
    "error",
    [torch.OutOfMemoryError("CUDA out of memory"), MemoryError(), RuntimeError("MPS backend out of memory")],
)
def test_memory_that_ran_out_elsewhere_is_no_refusal(error: Exception) -> None:
    back = error_of(told_of(error))
    assert is_out_of_memory(back)
    assert not isinstance(back, (UsageError, DoesNotFitError))
    assert str(back).startswith("out of memory: ")


@pytest.mark.fifth
def test_cancelling_ends_a_job_within_a_step_and_frees_its_replica() -> None:
    began = threading.Event()
    with replicas(1) as pool:
        slow = pool.submit(Job("slow"), lambda done, total, _: began.set())
        waits = pool.submit(Job("a cat"))
        assert began.wait(10)
        at = time.monotonic()
        assert slow.cancel()
        assert waits.cancel()
        assert pool.run(Job("a cat", seed=2))[0].getpixel((0, 0))[2] == 2  # the one that waited was never begun
        assert time.monotonic() - at < 3  # of five seconds
        assert slow.cancelled()


@pytest.mark.fifth
def test_what_a_callback_raises_ends_the_job() -> None:
    class EnoughError(Exception):
        pass

    def on_step(done: int, total: int, latents: object) -> None:
        if done == 2:
            raise EnoughError

    with replicas(1) as pool:
        with pytest.raises(EnoughError):
            pool.run(Job("slow"), on_step)
        assert len(pool.run(Job("a cat"))) == 1


@pytest.mark.parametrize(("model", "kind", "why"), [
    ("refuse", UsageError, "there is no such model"),
    ("die", DovetailError, "replica [12] cannot start: process .* was killed by SIGKILL.*: no memory is left"),
])  # fmt: skip
def test_replicas_that_cannot_start_are_one_error_and_leave_nothing(
    model: str, kind: type[Exception], why: str
) -> None:
    with pytest.raises(kind, match=why), replicas(2, model):
        pass
    mine = subprocess.run(["ps", "--ppid", str(os.getpid()), "-o", "args="], capture_output=True, text=True).stdout
    assert "fake_replica" not in mine


@pytest.mark.fifth
def test_what_replicas_write_is_passed_on_once() -> None:
    said: list[str] = []
    with replicas(2, told=said.append) as pool:
        for one in [pool.submit(Job("warn")) for _ in range(6)]:
            one.result(20)
    assert [line.partition(": ")[2] for line in said] == ["be warned"]


def test_a_pool_that_is_closed_cancels_what_it_has() -> None:
    began = threading.Event()
    with replicas(1) as pool:
        slow = pool.submit(Job("slow"), lambda done, total, _: began.set())
        waits = pool.submit(Job("a cat"))
        assert began.wait(10)
    assert slow.cancelled()
    assert waits.cancelled()
    assert pool.submit(Job("late")).cancelled()


PARENT = """
import sys, time
from dovetail.jobs.job import Job
from dovetail.jobs.replicas import Replicas
from dovetail.jobs.runner import Opening
with Replicas({"one": Opening(), "two": Opening()}, command=(sys.executable, "-m", "testbed.fake_replica")) as pool:
    pool.submit(Job("slow"))
    print(*(seat.pid for seat in pool.seats), flush=True)
    time.sleep(60)
"""


@pytest.mark.fifth
@pytest.mark.parametrize("how", [signal.SIGKILL, pytest.param(signal.SIGINT, marks=pytest.mark.slow)])
def test_no_replica_outlives_who_started_it(how: signal.Signals) -> None:
    parent = subprocess.Popen(
        [sys.executable, "-c", PARENT], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
    )  # fmt: skip
    assert parent.stdout is not None
    children = [int(word) for word in parent.stdout.readline().split()]
    assert len(children) == 2
    parent.send_signal(how)
    assert all(map(ends, children))
    parent.wait(10)
    parent.stdout.close()
