"""Guidance parts that are calls of their own go on at the same time on devices that hold the whole denoiser each."""

from __future__ import annotations

import _thread
import gc
import logging
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
import torch

import dovetail
from dovetail.compiler.spec.modes import inner_mode
from dovetail.components import alternating
from dovetail.components.alternating import Alternating, Rotation
from dovetail.passes.states.states import split_mode_of
from dovetail.pipelines.dryrun import DryPipeline
from dovetail.runtime import sim
from dovetail.runtime.devices.accelerator import accelerator_of
from dovetail.runtime.executor import Executor
from dovetail.runtime.launching import Launched
from dovetail.runtime.unfinished import Unfinished
from testbed.guidance import guided
from testbed.guidance import painted as painted_on_two
from testbed.pipelines.tiny_pipelines import flux, paint
from tests.cases import drawn, slow_but

ROOM = 2**33
GUIDED = ("flux", "wan", "qwen", "hunyuan_video")
BACKEND = "diffusion=sim0&sim1,te=sim0,vae=sim0"
BATCH = "diffusion=batch"


@pytest.fixture(autouse=True)
def nothing_left() -> Iterator[None]:
    gc.collect()
    sim.enable(dict.fromkeys(range(3), ROOM))
    yield
    assert not [one for one in threading.enumerate() if one.name.startswith("launched")]


Painted = tuple[Any, dict[str, Any], torch.Tensor]
"""A pipeline, a call of it, and what eager gives."""


def plain() -> Painted:
    pipe, call = flux()
    call |= {"negative_prompt": "grey", "true_cfg_scale": 2.0}
    return pipe, call, paint(pipe, call)


@pytest.fixture(scope="module")
def painted() -> Iterator[Painted]:
    """One that is compiled, and whose guidance parts take turns."""
    sim.enable(dict.fromkeys(range(3), ROOM))
    pipe, call, eager = plain()
    with dovetail.compile_pipeline(pipe, BACKEND, split_mode=BATCH).dovetail as handle:
        handle.prepare(**call)
        yield pipe, call, eager


class Clocked(Launched):
    """A launched call that notes where the stream of its device was when it began."""

    seen: list[Clocked]

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.stream = accelerator_of(self.device).side_stream("launched")
        self.began = self.stream.now
        type(self).seen.append(self)

    def has_waited_for(self, other: Clocked) -> bool:
        """Whether its device had to wait for something that the other call computes."""
        return bool(self._done.clock.get(other.stream.number, 0) > other.began)


@pytest.fixture
def clocks(monkeypatch: pytest.MonkeyPatch) -> list[Clocked]:
    seen: list[Clocked] = []
    monkeypatch.setattr(Clocked, "seen", seen, raising=False)
    monkeypatch.setattr(alternating, "Launched", Clocked)
    return seen


def check_overlap(clocks: list[Clocked]) -> None:
    """Of a step neither part has waited for the other, and the next step has waited for both."""
    assert len(clocks) >= 4
    for one, other in zip(clocks[::2], clocks[1::2], strict=True):
        assert (str(one.device), str(other.device)) == ("sim:0", "sim:1")
        assert not one.has_waited_for(other)
        assert not other.has_waited_for(one)
    assert clocks[2].has_waited_for(clocks[0])  # a step has waited for the one before
    assert clocks[2].has_waited_for(clocks[1])


@pytest.mark.fifth
def test_parts_overlap_by_the_clocks_of_devices(painted: Painted, clocks: list[Clocked]) -> None:
    pipe, call, eager = painted
    assert torch.equal(paint(pipe, call).cpu(), eager)
    check_overlap(clocks)


@pytest.mark.slow
@pytest.mark.parametrize("name", drawn(GUIDED, 2))
def test_guided_pipelines_have_eager_s_bits_and_the_peaks_of_their_plans(name: str, clocks: list[Clocked]) -> None:
    pipe, call = guided(name)
    eager, before = paint(pipe, call), [sim.stats(at).in_use for at in range(2)]
    with dovetail.compile_pipeline(pipe, BACKEND, split_mode=BATCH).dovetail as handle:
        plan = handle.plan(**call)
        assert plan is not None
        handle.prepare(**call)
        sim.reset_stats(0)
        sim.reset_stats(1)
        assert torch.equal(paint(pipe, call).cpu(), eager)
        peaks = {one.name: peak.total for one, peak in plan.peaks().items()}
        assert sim.stats(1).peak - before[1] == peaks["sim1"]
        assert peaks["sim0"] * 0.98 <= sim.stats(0).peak - before[0] <= peaks["sim0"]
    check_overlap(clocks)


@pytest.mark.slow
@pytest.mark.parametrize("name", drawn(("wan", "qwen"), 1))
@pytest.mark.parametrize("mode", ["batch+sequence", "batch+tensor"])
def test_parts_take_turns_on_groups_that_compute_each_together(
    name: str, mode: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[torch.device] = []
    monkeypatch.setattr(alternating, "Launched", lambda *given: seen.append(given[1]) or Launched(*given))
    sim.enable(dict.fromkeys(range(4), ROOM))
    pipe, call = guided(name)
    eager, before = paint(pipe, call), [sim.stats(at).in_use for at in range(4)]
    backend = "diffusion=sim0&sim1&sim2&sim3,te=sim0,vae=sim0"
    with dovetail.compile_pipeline(pipe, backend, split_mode=f"diffusion={mode}").dovetail as handle:
        plan = handle.plan(**call)
        told = handle.account(plan).remarks()
        handle.prepare(**call)
        for at in range(4):
            sim.reset_stats(at)
        assert torch.allclose(paint(pipe, call).cpu(), eager, atol=1e-5)
        calls = [one.program for one in plan.calls if one.component == "transformer"]
        assert [" & ".join(map(str, one.devices)) for one in calls] == ["sim0 & sim1", "sim2 & sim3"]
        assert [split_mode_of(one) for one in calls] == [inner_mode(mode)] * 2
        assert any("take turns on sim0 & sim1 and sim2 & sim3" in one for one in told)
        peaks = {one.name: peak.total for one, peak in plan.peaks().items()}
        for at in range(1, 4):
            assert sim.stats(at).peak - before[at] == peaks[f"sim{at}"]
        assert peaks["sim0"] * 0.98 <= sim.stats(0).peak - before[0] <= peaks["sim0"]
    assert [str(one) for one in seen[:4]] == ["sim:0", "sim:2"] * 2


@pytest.mark.slow
@pytest.mark.parametrize("name", ["wan", "qwen", "sdxl"])
def test_devices_with_a_part_of_guidance_each_do_almost_twice_as_much(name: str) -> None:
    found = painted_on_two(name)
    assert found.factor > 1.9, str(found)
    assert found.takes_turns == (name != "sdxl")
    assert found.is_equal or not found.takes_turns
    assert found.off < 1e-5


@pytest.mark.fifth
def test_both_devices_have_the_whole_denoiser_and_are_in_the_plan(
    painted: Painted,
) -> None:
    pipe, call, _ = painted
    plan = pipe.dovetail.plan(**call)
    calls = [one for one in plan.calls if one.component == "transformer"]
    assert [str(one.program.main) for one in calls] == ["sim0", "sim1"]
    weights = [sum(piece.nbytes for piece in one.pieces) for one in calls]
    assert weights[0] == weights[1] >= sum(p.nbytes for p in pipe.transformer.parameters())
    assert [one.times for one in calls] == [2, 2]
    assert [[str(one.program.main) for one in turn] for turn in plan.turns] == [["sim0", "sim1"]] * 2
    account = pipe.dovetail.account(plan)
    (together,) = account.together
    parts = [part for part in account.parts if part.call.component == "transformer"]
    assert together.times == together.calls == 2
    assert together.apart / 2 <= together.seconds < together.apart
    assert account.seconds == pytest.approx(sum(part.seconds for part in account.parts) - together.saved)
    assert together.saved == pytest.approx(sum(part.seconds for part in parts) - 2 * together.seconds)
    told = "calls of transformer take turns on sim0 and sim1, each of which holds it whole: 2 guidance parts take"
    assert any(line.startswith(told) for line in account.remarks())
    assert told[1:] in pipe.dovetail.explain(**call)


@pytest.mark.fifth
def test_devices_are_found_whose_calls_take_turns(painted: Painted) -> None:
    _, call, _ = painted
    pipe, _ = flux()
    dry = DryPipeline(pipe, {"rig": "sim0=1GiB,sim1=1GiB,sim2=1GiB,cpu=8GiB", "split_mode": BATCH})
    try:
        account = dry.account(dry(**call))
    finally:
        dry.undo()
    mains = [str(one.program.main) for one in account.generation.calls if one.component == "transformer"]
    assert len(mains) == len(set(mains)) == 2  # the third would have no part
    assert account.settings["--split-mode"] == BATCH
    assert [one.times for one in account.together] == [2]


def with_run(
    monkeypatch: pytest.MonkeyPatch, device: str, before: Callable[[int], object], after: Callable[[], object] = int
) -> None:
    """Has something be done around each run of a program on a device in a thread of its own, with its number."""
    own, count = Executor.__call__, [0]

    def call(executor: Executor, values: Any) -> Any:
        if str(executor._program.main) != device or threading.current_thread() is threading.main_thread():
            return own(executor, values)
        count[0] += 1
        before(count[0])
        found = own(executor, values)
        after()
        return found

    monkeypatch.setattr(Executor, "__call__", call)


@pytest.mark.fifth
def test_they_are_issued_at_the_same_time(painted: Painted, monkeypatch: pytest.MonkeyPatch) -> None:
    pipe, call, eager = painted
    meeting = threading.Barrier(2, timeout=60)  # which one after the other would never pass
    own = Executor.__call__

    def meet(executor: Executor, values: Any) -> Any:
        if threading.current_thread().name.startswith("launched"):
            meeting.wait()
        return own(executor, values)

    monkeypatch.setattr(Executor, "__call__", meet)
    assert torch.equal(paint(pipe, call).cpu(), eager)


@pytest.mark.fifth
@pytest.mark.few(2)
@pytest.mark.parametrize("device", ["sim0", "sim1"])
@pytest.mark.parametrize("error", [ValueError, KeyboardInterrupt])
def test_an_error_is_raised_where_the_part_is_read_and_the_next_call_is_right(
    painted: Painted,
    monkeypatch: pytest.MonkeyPatch,
    device: str,
    error: type[BaseException],
) -> None:
    pipe, call, eager = painted

    def fail(number: int) -> None:
        if number == 2:
            raise error("broken")

    paint(pipe, call)
    gc.collect()
    before = [sim.stats(at).in_use for at in range(2)]
    with monkeypatch.context() as patched, pytest.raises(error, match="broken") as raised:
        with_run(patched, device, fail)
        paint(pipe, call)
    if error is ValueError:
        (note,) = raised.value.__notes__
        assert "transformer (FluxTransformer2DModel).forward" in note
        assert f"sim:{device[-1]}" in note
    del raised
    assert torch.equal(paint(pipe, call).cpu(), eager)
    gc.collect()
    assert [sim.stats(at).in_use for at in range(2)] == before


@pytest.mark.fifth
@pytest.mark.few(1)
@pytest.mark.parametrize("device", ["sim0", "sim1"])
def test_a_part_that_runs_out_of_memory_is_computed_once_more(
    painted: Painted,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    device: str,
) -> None:
    pipe, call, eager = painted

    def fill(number: int) -> None:
        if number == 1:
            raise torch.OutOfMemoryError("full")

    with_run(monkeypatch, device, fill)
    with caplog.at_level(logging.WARNING):
        assert torch.equal(paint(pipe, call).cpu(), eager)
    assert "transformer ran out of memory and runs once more" in caplog.text


def test_an_interrupt_waits_for_what_was_launched(
    painted: Painted, monkeypatch: pytest.MonkeyPatch, heeding_interrupts: None
) -> None:
    pipe, call, eager = painted
    ended: list[int] = []

    def interrupt(number: int) -> None:
        if number == 1:
            _thread.interrupt_main()

    with monkeypatch.context() as patched, pytest.raises(KeyboardInterrupt):
        with_run(patched, "sim1", interrupt, lambda: ended.append(1))
        paint(pipe, call)
    assert ended == [1]
    assert torch.equal(paint(pipe, call).cpu(), eager)


@pytest.mark.slow
def test_a_callback_that_writes_latents_changes_no_part_that_was_launched() -> None:
    pipe, call, _ = plain()

    def halve(_: Any, step: int, time: Any, values: dict[str, Any]) -> dict[str, Any]:
        values["latents"].mul_(0.5)
        values["prompt_embeds"].add_(1)
        return values

    call = {
        **call, "callback_on_step_end": halve, "callback_on_step_end_tensor_inputs": ["latents", "prompt_embeds"]
    }  # fmt: skip
    eager = paint(pipe, call)
    with dovetail.compile_pipeline(pipe, BACKEND, split_mode=BATCH).dovetail:
        assert torch.equal(paint(pipe, call).cpu(), eager)


@pytest.mark.slow
def test_two_pipelines_at_once(painted: Painted) -> None:
    pipe, call, eager = painted
    other, _ = flux()
    with dovetail.compile_pipeline(other, BACKEND, split_mode=BATCH).dovetail:
        with ThreadPoolExecutor(2) as pool:
            found = list(pool.map(lambda one: paint(one, call), (pipe, other)))
        assert all(torch.equal(one.cpu(), eager) for one in found)


@pytest.mark.slow
def test_without_guidance_calls_follow_each_other() -> None:
    pipe, call = flux()
    alone = {name: value for name, value in call.items() if name != "negative_prompt"}
    eager = paint(pipe, alone)
    with dovetail.compile_pipeline(pipe, BACKEND, split_mode=BATCH).dovetail as handle:
        assert torch.equal(paint(pipe, alone).cpu(), eager)
        assert not any(isinstance(one, Alternating) for one in handle.programs["transformer"])


@pytest.mark.fifth
def test_where_a_result_cannot_be_handed_out_calls_run_one_after_another(
    painted: Painted, clocks: list[Clocked], monkeypatch: pytest.MonkeyPatch
) -> None:
    pipe, call, eager = painted
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]):
        assert torch.equal(paint(pipe, call).cpu(), eager)
    assert not clocks
    launches, given = pipe.dovetail.components["transformer"].launches, list[Any]()
    own = launches.call

    def note(program: Alternating, title: str, args: Any, kwargs: Any, recover: Any) -> Any:
        given.append((args, {name: _copied(value) for name, value in kwargs.items()}))
        return own(program, title, args, kwargs, recover)

    with monkeypatch.context() as patched:
        patched.setattr(launches, "call", note)
        paint(pipe, call)
    clocks.clear()
    args, kwargs = given[0]
    with torch.no_grad():
        (alone,) = pipe.transformer(*args, **kwargs)  # outside of a call of the pipeline
    launches.is_open = True
    with torch.enable_grad():
        (graded,) = pipe.transformer(*args, **kwargs)
    assert not clocks
    with torch.no_grad():
        (launched,) = pipe.transformer(*args, **kwargs)
    assert len(clocks) == 1
    assert [type(one) for one in (alone, graded, launched)] == [type(alone), type(alone), Unfinished]
    assert torch.equal(launched, alone)
    assert torch.equal(launched, graded)
    launches.end(failed=False)


def _copied(value: Any) -> Any:
    return value.clone() if isinstance(value, torch.Tensor) else value


@pytest.mark.fifth
def test_a_result_that_nobody_reads_is_dropped_and_its_error_is_not(
    painted: Painted, monkeypatch: pytest.MonkeyPatch
) -> None:
    pipe, call, eager = painted
    component = pipe.dovetail.components["transformer"]
    own, failing = component.launches.call, [False]

    def twice(program: Alternating, *args: Any) -> Any:
        own(program, *args)
        return own(program, *args)

    def fail(number: int) -> None:
        if failing[0] and number == 1:
            raise ValueError("unread")

    monkeypatch.setattr(component.launches, "call", twice)
    assert torch.equal(paint(pipe, call).cpu(), eager)
    failing[0] = True
    with_run(monkeypatch, "sim0", fail)
    with pytest.raises(ValueError, match="unread"):
        paint(pipe, call)


@pytest.mark.slow
def test_what_does_not_fit_whole_is_placed_by_layers_and_this_is_said(caplog: pytest.LogCaptureFixture) -> None:
    pipe, call, eager = plain()
    nbytes = sum(p.nbytes for p in pipe.transformer.parameters())
    with (
        caplog.at_level(logging.WARNING),
        dovetail.compile_pipeline(
            pipe, "diffusion=sim0&sim1,te=sim2,vae=sim2", split_mode=BATCH,
            max_vram=f"sim0={nbytes * 9 // 10240}KiB,sim1={nbytes * 9 // 10240}KiB",
        ).dovetail,
    ):  # fmt: skip
        assert torch.equal(paint(pipe, call).cpu(), eager)
    assert "its calls do not take turns: each device would hold it whole" in caplog.text


@pytest.mark.fifth
@pytest.mark.few(1)
@pytest.mark.parametrize(
    ("more", "why"),
    [
        ({"params_backend": {"diffusion": "cpu"}}, "its weights are kept elsewhere"),
        ({"tensor_split": "diffusion=1:1"}, "its devices were given shares"),
        ({"max_vram": "sim1=400KiB"}, "not each device has room for all of it"),
    ],
)
def test_a_plan_says_why_parts_run_one_after_another(painted: Painted, more: dict[str, Any], why: str) -> None:
    _, call, _ = painted
    pipe, _ = flux()
    dry = DryPipeline(
        pipe, {"rig": "sim0=1GiB,sim1=1GiB,cpu=8GiB", "backend": BACKEND, "split_mode": BATCH, **more}
    )  # fmt: skip
    try:
        account = dry.account(dry(**call))
    finally:
        dry.undo()
    assert not account.together
    told = f"guidance parts of transformer run one after another, for {why}"
    assert any(line.startswith(told) for line in account.remarks())


WITHOUT_A_MODE: dict[str, dict[str, Any]] = {
    "by layers": {"backend": BACKEND},
    "in shares": {"backend": BACKEND, "tensor_split": "diffusion=3:1"},
    "of three devices": {"backend": "diffusion=sim0&sim1&sim2,te=sim0,vae=sim1"},
    "weights elsewhere": {"backend": BACKEND, "params_backend": "diffusion=cpu"},
    "within budgets": {"backend": BACKEND, "max_vram": "sim0=300KiB,sim1=300KiB"},
    "in chunks": {"backend": BACKEND, "chunk": "diffusion=2"},
    "in micro-batches": {"backend": BACKEND, "micro_batches": "diffusion=2"},
    "devices left open": {},
    "open, with little room": {"rig": "sim3=400KiB,sim4=400KiB,cpu=8GiB"},  # where no other test holds anything
}


@pytest.mark.fifth
@pytest.mark.parametrize("name", slow_but(("by layers", "weights elsewhere", "devices left open"), WITHOUT_A_MODE))
def test_without_a_mode_each_weight_is_on_one_device_so_that_no_calls_can_take_turns(name: str) -> None:
    _, call, _ = plain()
    pipe, _ = flux()
    dry = DryPipeline(pipe, {"rig": "sim0=1GiB,sim1=1GiB,sim2=1GiB,cpu=8GiB", **WITHOUT_A_MODE[name]})
    try:
        plan = dry(**call)
        parameters = {path for path, _ in pipe.transformer.named_parameters()}
    finally:
        dry.undo()
    of_each: dict[str, set[str]] = {}
    for one in (one for one in plan.calls if one.component == "transformer"):
        for piece in one.pieces:
            of_each.setdefault(piece.name, set()).add(str(piece.device))
    assert parameters & of_each.keys()
    assert all(len(of_each[path]) == 1 for path in parameters & of_each.keys())
    assert not any(plan.turns)


def test_turns_begin_again_with_each_reading() -> None:
    rotation = Rotation()
    assert [rotation.take() for _ in range(3)] == [0, 1, 2]
    rotation.end()
    assert rotation.take() == 0
    assert not rotation.is_full(2)


@pytest.mark.slow
def test_adapters_that_are_exchanged_are_those_of_each_part() -> None:
    peft = pytest.importorskip("peft")
    pipe, call = flux()
    call |= {"negative_prompt": "grey", "true_cfg_scale": 2.0}
    torch.manual_seed(0)
    for name in "ab":
        config = peft.LoraConfig(r=2, init_lora_weights=False, target_modules=["to_q", "to_k"])
        pipe.transformer.add_adapter(config, name)
    eager = {}
    for name in "ab":
        pipe.transformer.set_adapters([name], [1.0])
        eager[name] = paint(pipe, call)
    with dovetail.compile_pipeline(pipe, BACKEND, split_mode=BATCH).dovetail as handle:
        for name in "aba":
            pipe.transformer.set_adapters([name], [1.0])
            handle.prepare(**call)
            assert torch.equal(paint(pipe, call).cpu(), eager[name])
