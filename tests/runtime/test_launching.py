"""A launched call goes on while its caller does, on inputs of its own; who reads it waits, and gets its errors."""

from __future__ import annotations

import _thread
import gc
import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch

from dovetail.runtime import sim
from dovetail.runtime.launching import Launched
from dovetail.runtime.sim.streams import RaceError

DEVICES = ("cpu", "sim:0", "sim:1")


@pytest.fixture(autouse=True)
def nothing_left() -> Iterator[None]:
    sim.enable()
    before = set(threading.enumerate())
    yield
    assert set(threading.enumerate()) <= before


class Held:
    """A run that begins to compute when it is let go of."""

    def __init__(self, compute: Callable[[torch.Tensor], torch.Tensor] = torch.sin) -> None:
        self.compute, self.reached, self.go = compute, threading.Event(), threading.Event()

    def __call__(self, inputs: list[torch.Tensor]) -> list[Any]:
        self.reached.set()
        assert self.go.wait(60)
        return [self.compute(inputs[0])]


def launched(run: Any, value: torch.Tensor, device: str, after: Launched | None = None) -> Launched:
    made = Launched("the call", torch.device(device), run, [value], after)
    made.start()
    return made


@pytest.mark.parametrize("there", DEVICES)
@pytest.mark.parametrize("here", DEVICES)
def test_what_is_written_after_the_call_is_not_seen_by_it(here: str, there: str) -> None:
    value = torch.randn(3, 8)
    expected = value.sin()
    given, run = value.to(here), Held()
    call = launched(run, given, there)
    given.add_(1).mul_(0)
    assert run.reached.wait(60)
    given.sub_(5)
    run.go.set()
    (found,) = call.leaves()
    assert found.device == torch.device(there)
    assert torch.equal(found.cpu(), expected)
    found.add_(1)  # it is the reader's


@pytest.mark.parametrize("there", DEVICES)
@pytest.mark.parametrize(
    "value", [torch.randn(4, 6).T, torch.randn(1, 6).expand(4, 6), torch.randn(9)[::2], torch.randn(()), torch.empty(0)]
)
def test_inputs_keep_their_strides(value: torch.Tensor, there: str) -> None:
    seen: list[tuple[int, ...]] = []

    def run(inputs: list[torch.Tensor]) -> list[Any]:
        seen.append(inputs[0].stride())
        return [inputs[0] + 1]

    (found,) = launched(run, value, there).leaves()
    assert seen == [value.stride()]
    assert torch.equal(found.cpu(), value + 1)


def test_calls_on_a_device_follow_each_other_and_others_do_not_wait() -> None:
    order: list[str] = []
    first, value = Held(), torch.randn(4)
    one = launched(first, value, "sim:0")

    def note(inputs: list[torch.Tensor]) -> list[Any]:
        order.append(str(inputs[0].device))
        return inputs

    second = launched(note, value, "sim:0", one)
    launched(note, value, "sim:1").join()
    assert order == ["sim:1"]
    first.go.set()
    second.join()
    assert order == ["sim:1", "sim:0"]


def test_results_are_read_behind_their_event_alone() -> None:
    call = launched(lambda inputs: [inputs[0] * 2], torch.randn(4).to("sim:0"), "sim:0")
    call.join()
    with pytest.raises(RaceError):
        print(call._leaves[0] + 1)  # which nobody waited for
    assert torch.is_tensor(call.leaves()[0] + 1)


@pytest.mark.parametrize("error", [ValueError, torch.OutOfMemoryError, KeyboardInterrupt])
def test_an_error_is_kept_until_it_is_read_and_the_call_may_be_made_again(error: type[BaseException]) -> None:
    tries: list[int] = []

    def run(inputs: list[torch.Tensor]) -> list[Any]:
        tries.append(1)
        if len(tries) == 1:
            raise error("full")
        return [inputs[0] + 1]

    value = torch.randn(4)
    call = launched(run, value, "sim:0")
    call.join()
    assert isinstance(call.error, error)
    with pytest.raises(error, match="full"):
        call.leaves()
    call.again()
    assert torch.equal(call.leaves()[0].cpu(), value + 1)


def test_an_interrupt_of_who_waits_leaves_the_call_going(heeding_interrupts: None) -> None:
    run = Held()
    call = launched(run, torch.zeros(4), "sim:0")
    assert run.reached.wait(60)
    threading.Timer(0.05, _thread.interrupt_main).start()
    with pytest.raises(KeyboardInterrupt):
        call.join()
    assert not call.is_over
    run.go.set()
    assert torch.equal(call.leaves()[0].cpu(), torch.zeros(4))
    assert call.is_over


def test_modes_of_the_caller_are_those_of_the_call() -> None:
    def run(inputs: list[torch.Tensor]) -> list[Any]:
        return [torch.is_inference_mode_enabled(), torch.is_grad_enabled()]

    assert launched(run, torch.randn(4), "cpu").leaves() == [False, False]
    with torch.inference_mode():
        assert launched(run, torch.randn(4), "cpu").leaves() == [True, False]


def test_a_call_that_is_done_and_dropped_has_nothing_on_devices() -> None:
    gc.collect()
    before = [sim.stats(at).in_use for at in range(2)]
    call = launched(lambda inputs: [inputs[0] * 2], torch.randn(1024), "sim:1")
    call.join()
    assert sim.stats(1).in_use > before[1]
    del call
    gc.collect()
    assert [sim.stats(at).in_use for at in range(2)] == before
