"""Threads that call one pipeline take turns, a call each; a call may use the components of its own pipeline."""

from __future__ import annotations

import signal
import sys
import threading
import time
from collections.abc import Callable
from typing import Any

import pytest
import torch

import dovetail
from dovetail.pipelines.sharing import lent
from testbed.pipelines import tiny_pipelines

pytestmark = pytest.mark.usefixtures("clean_sims")

SPREAD = "unet=sim0&sim1,te=sim1,vae=sim0"


def painted(pipe: Any, call: dict[str, Any], seed: int, **more: Any) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.as_tensor(pipe(**{**call, **more}, generator=generator, output_type="pt")[0]).cpu()


@pytest.fixture(scope="module")
def compiled() -> Any:
    pipe, call = tiny_pipelines.sd()
    call = {**call, "num_inference_steps": 3}
    expected = [painted(pipe, call, seed) for seed in range(3)]
    dovetail.compile_pipeline(pipe, SPREAD)
    painted(pipe, call, 0)
    yield pipe, call, expected
    pipe.dovetail.undo()


def in_thread(work: Callable[[], Any]) -> threading.Thread:
    thread = threading.Thread(target=work, daemon=True)
    thread.start()
    return thread


@pytest.mark.fifth
def test_each_of_several_threads_gets_the_picture_of_its_own_call(compiled: Any) -> None:
    pipe, call, expected = compiled
    found: list[Any] = []

    def work(seed: int) -> None:
        for _ in range(3):
            try:
                found.append(torch.equal(painted(pipe, call, seed), expected[seed]))
            except Exception as error:
                found.append(error)

    threads = [in_thread(lambda seed=seed: work(seed)) for seed in range(3)]  # type: ignore[misc]
    for thread in threads:
        thread.join(120)
    assert found == [True] * 9


@pytest.mark.fifth
def test_a_callback_may_call_the_components_of_its_own_pipeline(compiled: Any) -> None:
    pipe, call, expected = compiled
    previews: list[torch.Size] = []

    def look(own: Any, _: int, __: Any, values: dict[str, Any]) -> dict[str, Any]:
        with torch.no_grad():
            previews.append(own.vae.decode(values["latents"], return_dict=False)[0].shape)
        return values

    assert torch.equal(painted(pipe, call, 1, callback_on_step_end=look), expected[1])
    assert len(previews) == 3


def interrupt_a_wait() -> None:
    """Does what Ctrl-C does, once the main thread waits for its turn: earlier one might end in a destructor's hands."""
    main = threading.main_thread().ident or 0
    for _ in range(600):
        time.sleep(0.1)
        if sys._current_frames()[main].f_code.co_filename.endswith("subclass.py"):
            signal.pthread_kill(main, signal.SIGINT)
            return


@pytest.mark.usefixtures("heeding_interrupts")
def test_an_interrupt_of_a_call_that_waits_for_its_turn_ends_it_and_leaves_the_pipeline_usable(compiled: Any) -> None:
    pipe, call, expected = compiled
    waits, over = threading.Event(), threading.Event()

    def hold(_: Any, __: int, ___: Any, values: dict[str, Any]) -> dict[str, Any]:
        waits.set()
        over.wait(60)
        return values

    thread = in_thread(lambda: painted(pipe, call, 0, callback_on_step_end=hold))
    assert waits.wait(60)
    in_thread(interrupt_a_wait)
    with pytest.raises(KeyboardInterrupt):
        painted(pipe, call, 1)
    assert not over.is_set()
    pipe._interrupt = False  # what is no component is set at once, whoever has the turn
    over.set()
    thread.join(60)
    assert torch.equal(painted(pipe, call, 2), expected[2])


def test_an_interrupt_at_the_beginning_of_a_call_leaves_none_running(
    compiled: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    pipe, call, expected = compiled
    handle = pipe.dovetail

    def interrupted() -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr(handle._recovery, "begin", interrupted)
        with pytest.raises(KeyboardInterrupt):
            painted(pipe, call, 0)
    assert not handle._running
    assert not handle._recovery.is_called
    assert torch.equal(painted(pipe, call, 0), expected[0])


def test_an_interrupt_while_components_are_lent_gives_them_back(compiled: Any) -> None:
    parts = compiled[0].dovetail.components
    before = {name: one.user for name, one in parts.items()}

    class Borrower:
        hook = None

        def as_user(self, name: str) -> Any:
            if name == list(parts)[-1]:
                raise KeyboardInterrupt
            return before[name].__class__("lent")

    with pytest.raises(KeyboardInterrupt), lent(parts, Borrower()):  # type: ignore[arg-type]
        pytest.fail("it was interrupted")
    assert all(one.user is before[name] and one.name == name for name, one in parts.items())
    hooks = {vars(one.module)["_hf_hook"] for one in parts.values()}
    assert hooks == {compiled[0].dovetail.hook}


@pytest.mark.fifth
def test_a_call_that_waits_while_its_pipeline_is_undone_is_answered_by_what_comes_then() -> None:
    pipe, call = tiny_pipelines.sd()
    expected, found = painted(pipe, call, 0), list[Any]()

    def work() -> None:
        try:
            found.append(torch.equal(painted(pipe, call, 0), expected))
        except Exception as error:
            found.append(error)

    for again in (False, True):
        dovetail.compile_pipeline(pipe, SPREAD)
        painted(pipe, call, 0)
        with pipe.dovetail.turn:
            thread = in_thread(work)
            thread.join(0.3)
            assert thread.is_alive()
            pipe.dovetail.undo()
            if again:
                dovetail.compile_pipeline(pipe, SPREAD)
        thread.join(60)
        assert not thread.is_alive()
    pipe.dovetail.undo()
    assert found == [True, True]
