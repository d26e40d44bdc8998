"""Calls over several devices that are interrupted, lack memory or fail: nothing is left, and the next one is right.

Tiny pipelines are compiled over two simulated devices, one for each way in which these compute. What happens to a
call is drawn by a seed: an interrupt at any moment of it, a device without room for it, an error in any of its
operations, or another pipeline that is called at the same time. After it no thread is left, nothing is on its way, and
the same pipeline paints its picture to the bit; then devices have in use what they had, and there are no more streams.
"""

from __future__ import annotations

import _thread
import contextlib
import faulthandler
import gc
import random
import signal
import threading
import time
import traceback
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any
from unittest import mock

import torch

import dovetail
from dovetail.compiler.errors import DovetailError
from dovetail.runtime import sim
from dovetail.runtime.devices.accelerator import accelerator_of
from dovetail.runtime.sim import streams
from dovetail.runtime.sim.streams import Stream

from .pipelines.tiny_pipelines import flux, paint, sd

ROOM = 2**33
DEVICES = (0, 1)
_ON_BOTH = "diffusion=sim0&sim1,te=sim0,vae=sim0"
_LONGEST = 120
"""After so many seconds a call hangs; where each thread is, is printed, and the process ends."""

Made = tuple[Any, dict[str, Any]]


def _guided() -> Made:
    pipe, call = flux()
    return pipe, {**call, "negative_prompt": "grey", "true_cfg_scale": 2.0}


WAYS: dict[str, tuple[Callable[[], Made], dict[str, str]]] = {
    "layer": (flux, {}),
    "sequence": (flux, {"split_mode": "diffusion=sequence"}),
    "tensor": (flux, {"split_mode": "diffusion=tensor"}),
    "weights that come": (
        flux,
        {
            "split_mode": "diffusion=sequence",
            "tensor_split": "diffusion=3:2",
            "params_backend": "diffusion=cpu",
            "max_vram": "sim0=1,sim1=0.0004",
        },
    ),
    "batch": (sd, {"split_mode": "diffusion=batch"}),
    "micro-batches": (sd, {"micro_batches": "diffusion=2"}),
    "turns": (_guided, {"split_mode": "diffusion=batch"}),
}
"""A pipeline for each way in which devices compute, and what asks for it."""


class BrokenError(Exception):
    """What is raised in the middle of a call."""


@dataclass(frozen=True)
class Subject:
    """A compiled pipeline, its call, the picture that it paints, and about how long that takes, in operations too."""

    way: str
    pipe: Any
    call: dict[str, Any]
    expected: torch.Tensor
    seconds: float
    operations: int

    @classmethod
    def of(cls, way: str) -> Subject:
        """The one of a way; its second picture is the one that all others are compared with."""
        made, more = WAYS[way]
        pipe, call = made()
        eager = paint(pipe, call)
        dovetail.compile_pipeline(pipe, _ON_BOTH, **more)
        for _ in range(2):
            begun = time.perf_counter()
            with _failing(-1) as count:
                expected = paint(pipe, call).cpu()
        assert (expected - eager).abs().max() < 1e-3, f"{way} paints another picture than eager"
        return cls(way, pipe, call, expected, time.perf_counter() - begun, count[0])

    def is_right(self) -> bool:
        """Whether it paints its picture."""
        return torch.equal(paint(self.pipe, self.call).cpu(), self.expected)


@dataclass
class Report:
    """What came of calls: how often each thing happened and was seen, and what was wrong."""

    counts: Counter[str] = field(default_factory=Counter)
    wrong: list[str] = field(default_factory=list)


class Stress:
    """Compiled pipelines, all of them or some, and what is drawn to happen to their calls.

    Args:
        seed: of what is drawn.
        ways: of the pipelines.
        faults: what happens: names of `FAULTS`.
    """

    def __init__(self, seed: int, ways: Sequence[str] = tuple(WAYS), faults: Sequence[str] = ()) -> None:
        sim.enable(dict.fromkeys(DEVICES, ROOM))
        self._random = random.Random(seed)
        self._faults = tuple(faults) or tuple(FAULTS)
        self.subjects = [Subject.of(way) for way in ways]
        for one in self.subjects:  # nothing is new any more
            assert one.is_right(), f"{one.way} paints another picture each time"
        self._before = _state()
        self._threads = set(threading.enumerate())

    def run(self, calls: int, told: Callable[[str], object] = str) -> Report:
        """So many calls to which something happens, each followed by one that must be right; ``told`` is told of it."""
        report = Report()
        with _heeding_interrupts():
            for number in range(calls):
                if number and number % 20 == 0:
                    told(f"{number} calls, {len(report.wrong)} wrong")
                subject, fault = self._random.choice(self.subjects), self._random.choice(self._faults)
                faulthandler.dump_traceback_later(_LONGEST, exit=True)
                try:
                    self._one(report, f"call {number}, {subject.way}, {fault}", subject, fault)
                finally:
                    faulthandler.cancel_dump_traceback_later()
        return report

    def end(self) -> None:
        """Makes the pipelines what they were."""
        for one in self.subjects:
            one.pipe.dovetail.undo()

    def _one(self, report: Report, what: str, subject: Subject, fault: str) -> None:
        try:
            report.counts[f"{fault}: {FAULTS[fault](self, subject)}"] += 1
        except Exception:
            report.wrong.append(f"{what}: {traceback.format_exc()}")
        try:
            if not subject.is_right():
                report.wrong.append(f"{what}: the next picture is another one")
        except Exception:
            report.wrong.append(f"{what}: the next call: {traceback.format_exc()}")
        report.wrong += [f"{what}: {said}" for said in self._left()]

    def _left(self) -> Iterator[str]:
        """What is left of a call."""
        until = time.monotonic() + 1
        while (more := set(threading.enumerate()) - self._threads) and time.monotonic() < until:
            time.sleep(0.001)  # one that has done all may be about to end
        if more:
            yield f"threads are left: {', '.join(one.name for one in more)}"
        if (now := _state()) != self._before:
            yield f"in use, streams, current and pending copies are {now}, and were {self._before}"

    def interrupted(self, subject: Subject) -> str:
        """Interrupts a call at any moment of it."""
        timer = threading.Timer(self._random.uniform(0, subject.seconds), _thread.interrupt_main)
        try:
            timer.start()
            is_right = subject.is_right()
            timer.cancel()
            timer.join()
            time.sleep(0)  # it may come yet
        except KeyboardInterrupt:
            return "interrupted"
        finally:
            timer.join()
        assert is_right, "a call that was not interrupted is wrong"
        return "it was done before"

    def without_room(self, subject: Subject) -> str:
        """Has a device have less room than a call takes."""
        index = self._random.choice(DEVICES)
        gc.collect()
        sim.reset_peak(index)
        assert subject.is_right()
        gc.collect()
        stats = sim.stats(index)
        room = stats.in_use + self._random.randrange(max(1, stats.peak - stats.in_use))
        sim.enable({index: room})
        try:
            found = paint(
                subject.pipe, subject.call
            ).cpu()  # pictures may go through at once then, which rounds otherwise
            assert (found - subject.expected).abs().max() < 1e-4, "less memory made another picture"
        except (DovetailError, torch.OutOfMemoryError):
            return "it was refused"
        finally:
            sim.enable({index: ROOM})
        return "it was done with less"

    def broken(self, subject: Subject) -> str:
        """Raises an error in an operation of the call, whoever computes it."""
        with _failing(self._random.randrange(subject.operations)):
            try:
                subject.is_right()
            except DovetailError as error:
                assert "BrokenError" in str(error), str(error)
                return "failed in a program"
            except BrokenError:
                return "failed beside programs"
        raise AssertionError("an error was raised nowhere")

    def beside_another(self, subject: Subject) -> str:
        """Calls another pipeline at the same time, to which something else may happen."""
        other = self._random.choice([one for one in self.subjects if one is not subject] or [subject])
        happens = self._random.choice((None, "interrupt", "error"))
        done: list[Future[bool]] = []
        with ThreadPoolExecutor(1) as pool:
            done.append(pool.submit(other.is_right))
            if happens == "interrupt":
                self.interrupted(subject)
            elif happens == "error":
                here, at = threading.current_thread(), self._random.randrange(subject.operations)
                with _failing(at, here), contextlib.suppress(DovetailError, BrokenError):
                    subject.is_right()
            else:
                assert subject.is_right(), "a call beside another one is wrong"
        assert done[0].result(), f"{other.way} beside it is wrong"
        return happens or "both are right"


FAULTS: dict[str, Callable[[Stress, Subject], str]] = {
    "an interrupt": Stress.interrupted,
    "a lack of memory": Stress.without_room,
    "an error in a block": Stress.broken,
    "two pipelines": Stress.beside_another,
}
"""What may happen to a call."""


def _state() -> tuple[Any, ...]:
    """The bytes in use of devices, streams beside the one for each purpose, current ones, and copies on their way."""
    gc.collect()
    for index in DEVICES:
        sim.synchronize(index)
    current = tuple(streams.current_stream(index).number for index in DEVICES)
    in_use = tuple(sim.stats(index).in_use for index in DEVICES)
    there: list[Any] = [accelerator_of(torch.device("sim", index)) for index in DEVICES]
    sides = sum(len(one._side_streams) for one in there)
    return in_use, len(streams._all) - sides, current, len(streams.HOST.pending)


@contextlib.contextmanager
def _heeding_interrupts() -> Iterator[None]:
    """Has interrupts come, which a shell in the background switches off."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)


@contextlib.contextmanager
def _failing(number: int, caller: threading.Thread | None = None) -> Iterator[list[int]]:
    """Has an operation on a device fail meanwhile, counted through all of them, or those of one thread.

    Yields a list of how many there were so far, which is one more than the number once it has failed.
    """
    own, count, lock = Stream.launch, [0], threading.Lock()

    def launch(stream: Stream) -> int:
        if caller in (None, threading.current_thread()):
            with lock:
                at, count[0] = count[0], count[0] + 1
            if at == number:
                raise BrokenError(f"at operation {at}")
        return own(stream)

    with mock.patch.object(Stream, "launch", launch):
        yield count
