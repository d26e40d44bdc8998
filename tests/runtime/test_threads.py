"""Devices that compute together are each issued to by a thread: they are busy at once, and end together."""

from __future__ import annotations

import _thread
import gc
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
import torch

import dovetail
from dovetail.compiler.errors import DoesNotFitError, ExecutionError
from dovetail.runtime import sim
from dovetail.runtime.executor import Executor
from dovetail.runtime.sim import streams
from dovetail.runtime.threads import turns_of
from testbed.gpu_thread_checks import left_since
from tests.laws.wide_modules import Attention, Gated, Stack

DEVICES = "sim0&sim1&sim2"


def model() -> torch.nn.Module:
    torch.manual_seed(0)
    return Stack((Attention, Gated), 2).eval()


X = torch.randn(1, 192, 256)


@pytest.fixture(scope="module", params=[{}, {"params_backend": "cpu"}], ids=["weights on devices", "weights brought"])
def compiled(request: pytest.FixtureRequest) -> dovetail.CompiledModule:
    return dovetail.compile(model(), (X,), backend=DEVICES, split_mode="tensor", **request.param)


@pytest.fixture(scope="module")
def expected(compiled: dovetail.CompiledModule) -> torch.Tensor:
    result: torch.Tensor = compiled(X)
    return result


@pytest.fixture(autouse=True)
def nothing_left() -> Iterator[None]:
    before = set(threading.enumerate())
    yield
    assert not left_since(before)


def executor_of(compiled: dovetail.CompiledModule) -> Executor:
    executor = compiled._executor
    assert isinstance(executor, Executor)
    return executor


def with_step(executor: Executor, device: int, before: Callable[[], object]) -> Callable[[], None]:
    """Has something be done before a run of a device, in the middle of a call; gives what undoes it."""
    turns = executor._turns
    assert turns is not None
    issued = turns[executor._program.devices[device]]
    runs = [one.number for one in issued if one.number in executor.sources]
    number = runs[len(runs) // 2]
    return with_step_of(executor, number, before)


def with_step_of(executor: Executor, number: int, before: Callable[[], object]) -> Callable[[], None]:
    """Has something be done before an instruction, and gives what undoes it."""
    assert executor._steps is not None
    places = [executor._steps, *executor._settled.by_finding.values()]
    kept = [place[number] for place in places]
    for place, own in zip(places, kept, strict=True):
        place[number] = lambda values, own=own: (before(), own(values))

    def undo() -> None:
        for place, own in zip(places, kept, strict=True):
            place[number] = own

    return undo


def test_each_device_has_a_thread_and_they_work_at_once(
    compiled: dovetail.CompiledModule, expected: torch.Tensor
) -> None:
    meeting, seen = threading.Barrier(3, timeout=60), set[int]()

    def meet() -> None:
        seen.add(threading.get_ident())
        meeting.wait()  # which one thread alone would never pass

    undo = [with_step(executor_of(compiled), device, meet) for device in range(3)]
    try:
        assert torch.equal(compiled(X), expected)
    finally:
        for one in undo:
            one()
    assert len(seen) == 3
    assert threading.get_ident() in seen


@pytest.mark.few(quick=4)
@pytest.mark.parametrize("device", range(3))
@pytest.mark.parametrize("error", [ValueError, torch.OutOfMemoryError, KeyboardInterrupt])
def test_an_error_on_one_device_ends_the_call_and_nothing_else(
    compiled: dovetail.CompiledModule, expected: torch.Tensor, device: int, error: type[BaseException]
) -> None:
    def fail() -> None:
        raise error("full")

    gc.collect()
    before = [sim.stats(at).in_use for at in range(3)]
    undo = with_step(executor_of(compiled), device, fail)
    told = {ValueError: ExecutionError, torch.OutOfMemoryError: DoesNotFitError}
    try:
        with pytest.raises(told.get(error, KeyboardInterrupt)):
            compiled(X)
    finally:
        undo()
    assert torch.equal(compiled(X), expected)
    gc.collect()
    assert [sim.stats(at).in_use for at in range(3)] == before


@pytest.mark.slow
def test_an_interrupt_while_another_device_works_ends_the_call(
    compiled: dovetail.CompiledModule, expected: torch.Tensor, heeding_interrupts: None
) -> None:
    reached, going_on = threading.Event(), threading.Event()

    def interrupt() -> None:
        reached.set()
        _thread.interrupt_main()
        going_on.wait(5)

    undo = with_step(executor_of(compiled), 2, interrupt)
    try:
        with pytest.raises(KeyboardInterrupt):
            compiled(X)
    finally:
        undo()
    assert reached.is_set()
    assert torch.equal(compiled(X), expected)


@pytest.mark.fifth
def test_many_calls_from_several_threads_at_once_are_right(
    compiled: dovetail.CompiledModule, expected: torch.Tensor
) -> None:
    other = dovetail.compile(model(), (X,), backend=DEVICES, split_mode="sequence")
    with ThreadPoolExecutor(4) as callers:
        found = list(callers.map(lambda at: (compiled, other)[at % 2](X), range(40)))
    assert all(torch.equal(one, expected) for one in found[::2])
    assert all(torch.equal(one, found[1]) for one in found[1::2])


def test_a_thread_goes_by_the_streams_of_its_caller(compiled: dovetail.CompiledModule) -> None:
    seen: list[Any] = []
    own = streams.Stream(1)
    undo = with_step(executor_of(compiled), 1, lambda: seen.append(streams.current_stream(1)))
    try:
        with streams.stream(own):
            compiled(X)
    finally:
        undo()
    assert seen == [own]


@pytest.mark.parametrize("params", [{}, {"params_backend": "cpu"}])
@pytest.mark.parametrize("mode", ["layer", "row"])
def test_devices_that_take_turns_or_help_with_products_are_issued_to_by_one_thread(
    mode: str, params: dict[str, str]
) -> None:
    one = dovetail.compile(model(), (X,), backend=DEVICES, split_mode=mode, **params)
    assert one.schedule is not None
    assert turns_of(one.program, one.schedule) is None
