"""What is left on devices: nothing after undoing or dropping a pipeline, an error or an interrupt; without gc."""

from __future__ import annotations

import gc
import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import nn

import dovetail
from dovetail.compiler.errors import CallError, DoesNotFitError
from dovetail.runtime import sim
from dovetail.runtime.sim import tensor as sim_tensor
from testbed.pipelines import tiny_pipelines
from testbed.pipelines.tiny_pipelines import paint
from tests.cases import slow_but

SPREAD = "diffusion=sim0&sim1,te=sim1,vae=sim0"


@pytest.fixture
def no_gc() -> Iterator[None]:
    gc.collect()
    gc.disable()
    sim.enable()
    yield
    gc.enable()
    gc.collect()


def in_use() -> list[int]:
    return [sim.stats(index).in_use for index in range(4)]


@pytest.mark.fifth
@pytest.mark.usefixtures("no_gc")
@pytest.mark.parametrize("rests", slow_but(["cpu"], ["", "cpu"]))
def test_undoing_and_dropping_free_the_devices_at_once(rests: str) -> None:
    pipe, call = tiny_pipelines.sd()
    before = in_use()
    dovetail.compile_pipeline(pipe, SPREAD, params_backend=rests and f"*={rests}")
    paint(pipe, call)
    pipe.dovetail.undo()
    assert in_use() == before
    dovetail.compile_pipeline(pipe, SPREAD, params_backend=rests and f"*={rests}")
    paint(pipe, call)
    del pipe
    assert in_use() == before


@pytest.mark.fifth
@pytest.mark.usefixtures("no_gc")
def test_components_go_on_working_when_their_pipeline_is_gone() -> None:
    pipe, _ = tiny_pipelines.sd()
    unet, before = pipe.unet, in_use()
    args = torch.randn(1, 4, 8, 8), torch.tensor(3), torch.randn(1, 4, 32)
    with torch.no_grad():
        expected = unet(*args).sample
        dovetail.compile_pipeline(pipe, SPREAD)
        del pipe
        assert torch.equal(unet(*args).sample, expected)
    del unet
    assert in_use() == before


@pytest.mark.usefixtures("no_gc")
@pytest.mark.slow
def test_an_undo_without_room_says_so_and_can_be_repeated() -> None:
    pipe, call = tiny_pipelines.sd()
    expected = paint(pipe, call)
    pipe.to("sim:3")
    dovetail.compile_pipeline(pipe, "sim0")
    paint(pipe, call)
    sim.enable({3: 100_000})
    try:
        with pytest.raises(DoesNotFitError, match=r"where it was before.*call undo\(\) again"):
            pipe.dovetail.undo()
    finally:
        sim.enable({3: 2**34})
    pipe.dovetail.undo()
    assert torch.equal(paint(pipe, call).cpu(), expected)
    assert "_dovetail" not in vars(pipe)


class _Stop:
    """Interrupts at the nth time that an operation runs on a simulated device."""

    def __init__(self, at: int) -> None:
        self.at, self.count = at, 0

    def __call__(self, func: Any, args: Any, kwargs: Any, *, compute: Callable[..., Any] = sim_tensor.compute) -> Any:
        self.count += 1
        if self.count == self.at:
            raise KeyboardInterrupt
        return compute(func, args, kwargs)


def _moments(pipe: Any, call: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> int:
    stop = _Stop(-1)
    monkeypatch.setattr(sim_tensor, "compute", stop)
    paint(pipe, call)
    return stop.count


def _is_interrupted(pipe: Any, call: dict[str, Any]) -> bool:
    try:
        paint(pipe, call)
    except KeyboardInterrupt:
        return True
    return False


@pytest.mark.fifth
@pytest.mark.usefixtures("no_gc")
@pytest.mark.parametrize("count", [8, pytest.param(40, marks=pytest.mark.slow)])
def test_an_interrupt_at_any_moment_leaves_nothing_staged(count: int, monkeypatch: pytest.MonkeyPatch) -> None:
    pipe, call = tiny_pipelines.sd()
    dovetail.compile_pipeline(pipe, SPREAD, params_backend="*=cpu")
    expected = paint(pipe, call)
    total = _moments(pipe, call, monkeypatch)
    pipe.scheduler.set_timesteps(1)
    before = in_use()
    for moment in range(count):
        monkeypatch.setattr(sim_tensor, "compute", _Stop(1 + moment * total // count))
        assert _is_interrupted(pipe, call)
        pipe.scheduler.set_timesteps(1)
        assert in_use() == before, moment
    monkeypatch.undo()
    assert torch.equal(paint(pipe, call), expected)


@pytest.mark.fifth
@pytest.mark.usefixtures("no_gc")
@pytest.mark.parametrize("error", [KeyboardInterrupt, RuntimeError])
def test_an_error_in_a_callback_leaves_nothing_staged(error: type[BaseException]) -> None:
    pipe, call = tiny_pipelines.sd()
    dovetail.compile_pipeline(pipe, SPREAD, params_backend="*=cpu")
    paint(pipe, call)
    pipe.scheduler.set_timesteps(1)
    before = in_use()

    def stop(*_: Any) -> Any:
        raise error

    with pytest.raises(error):
        paint(pipe, {**call, "callback_on_step_end": stop})
    pipe.scheduler.set_timesteps(1)
    assert in_use() == before


class Chain(nn.Module):
    """Layers in a row."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(16, 16) for _ in range(4))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for layer in self.layers:
            x = torch.tanh(layer(x))
        return x


class Pipe:
    """The least of a pipeline."""

    def __init__(self) -> None:
        torch.manual_seed(0)
        self.transformer = Chain().eval()

    @property
    def components(self) -> dict[str, Any]:
        return {"transformer": self.transformer}

    @property
    def _execution_device(self) -> torch.device:
        return torch.device("cpu")


class _Pause:
    """Lets one thread stop in its last tanh on a simulated device, until it is told to go on."""

    def __init__(self) -> None:
        self.left = len(Chain().layers)
        self.thread: threading.Thread | None = None
        self.inside, self.over = threading.Event(), threading.Event()

    def __call__(self, func: Any, args: Any, kwargs: Any, *, compute: Callable[..., Any] = sim_tensor.compute) -> Any:
        if threading.current_thread() is self.thread and "tanh" in str(func):
            self.left -= 1
            if not self.left:
                self.inside.set()
                assert self.over.wait(30)
        return compute(func, args, kwargs)


@pytest.mark.few(quick=2)
@pytest.mark.usefixtures("no_gc")
@pytest.mark.parametrize("what", ["a call", "an error", "a release", "an undo"])
def test_what_another_thread_does_waits_until_a_running_call_ends(what: str, monkeypatch: pytest.MonkeyPatch) -> None:
    pipe, x, found, pause = Pipe(), torch.randn(2, 16), [], _Pause()
    with torch.no_grad():
        expected = pipe.transformer(x)
    dovetail.compile_pipeline(pipe, "sim0", params_backend="cpu")

    def call() -> None:
        with torch.no_grad():
            found.append(pipe.transformer(x))

    def err() -> None:
        with pytest.raises(CallError):
            pipe.transformer(x.clone().requires_grad_())

    before = sim.stats(0).in_use
    call()
    pipe.dovetail.release()
    monkeypatch.setattr(sim_tensor, "compute", pause)
    pause.thread = threading.Thread(target=call)
    pause.thread.start()
    assert pause.inside.wait(30)
    work = {"a call": call, "an error": err, "a release": pipe.dovetail.release, "an undo": pipe.dovetail.undo}[what]
    other = threading.Thread(target=work)
    other.start()
    other.join(0.05)
    assert other.is_alive()
    assert len(found) == 1
    pause.over.set()
    pause.thread.join(60)
    other.join(60)
    call()
    pipe.dovetail.release() if what != "an undo" else None
    assert sim.stats(0).in_use == before
    assert [torch.equal(one, expected) for one in found] == [True] * (4 if what == "a call" else 3)


@pytest.mark.parametrize("rounds", [2, pytest.param(50, marks=pytest.mark.slow)])
@pytest.mark.parametrize("rests", ["", "cpu"])
def test_threads_that_compile_disturb_no_call_and_no_other_compile(rounds: int, rests: str) -> None:
    inputs = [torch.randn(size, 16) for size in range(1, 7)]
    wrong: list[Any] = []
    for _ in range(rounds):
        pipe = Pipe()
        with torch.no_grad():
            expected = [pipe.transformer(x) for x in inputs]
        dovetail.compile_pipeline(pipe, "sim0&sim1", params_backend=rests and f"*={rests}")
        start = threading.Barrier(4)

        def use(shift: int, module: Any = pipe.transformer, start: Any = start, expected: Any = expected) -> None:
            start.wait()
            for turn in range(12):
                index = (shift + turn) % 6
                try:
                    with torch.no_grad():
                        if not torch.equal(module(inputs[index]), expected[index]):
                            wrong.append((index, "other numbers"))
                except Exception as error:
                    wrong.append((index, error))

        _in_threads(use, 4)
        assert not wrong, wrong[:3]
        assert 1 <= len(pipe.dovetail.programs["transformer"]) <= 6
        pipe.dovetail.undo()


def _in_threads(function: Callable[[int], None], count: int) -> None:
    threads = [threading.Thread(target=function, args=(index,)) for index in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


@pytest.mark.fifth
def test_modules_that_are_not_compiled_run_as_ever_while_another_thread_traces() -> None:
    other, x = Chain().eval(), torch.randn(3, 16)
    with torch.no_grad():
        expected, over, wrong = other(x), threading.Event(), []

        def use(_: int) -> None:
            with torch.no_grad():
                while not over.is_set():
                    found = other.layers[0]
                    if type(found) is not nn.Linear or not torch.equal(other(x), expected):
                        wrong.append(type(found))

        thread = threading.Thread(target=use, args=(0,))
        thread.start()
        for size in range(1, 5):
            dovetail.compile(Chain().eval(), (torch.randn(size, 16),), backend="cpu")
        over.set()
        thread.join()
    assert not wrong


def test_two_threads_that_load_a_module_bring_its_weights_once() -> None:
    sim.enable()
    module = Chain().eval()
    compiled = dovetail.compile(module, (torch.ones(2, 16),), backend="sim0")
    sim.reset_stats(0)
    before = sim.stats(0).bytes_in
    _in_threads(lambda _: compiled.load(), 4)
    assert sim.stats(0).bytes_in - before == sum(p.nbytes for p in module.parameters())
