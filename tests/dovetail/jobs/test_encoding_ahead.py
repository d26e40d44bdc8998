"""The next prompt is encoded while the last one is sampled: the same pictures, and only where devices allow."""

from __future__ import annotations

import gc
import logging
import threading
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import pytest
import torch
from PIL import Image, ImageChops

from dovetail.cli.options.shared import Where
from dovetail.components.compiled import CompiledModule
from dovetail.components.encoded import Encoded, Encoding
from dovetail.components.running_ahead import draws_numbers
from dovetail.jobs.bulk.prompts import Line
from dovetail.jobs.bulk.record import Record
from dovetail.jobs.bulk.work import Work
from dovetail.jobs.facts import Facts
from dovetail.jobs.job import Job
from dovetail.jobs.replicas.child import Replica
from dovetail.jobs.replicas.promised import Promised, Waiting
from dovetail.jobs.replicas.wire import Message, Wire
from dovetail.jobs.runner import Opening, Runner
from dovetail.planning.ahead import bytes_ahead, front_of
from dovetail.runtime.devices.accelerator import accelerator_of
from testbed.pipelines import every_pipeline

RIG = "sim0=80MiB,sim1=80MiB,cpu=8GiB"
APART = "te=sim1,diffusion=sim0,vae=sim0"
JOBS = [
    Job("a red circle", width=32, height=32, steps=2, seed=7),
    Job("a blue square", width=32, height=32, steps=2, seed=8),
    Job("a green triangle", width=32, height=32, steps=2, seed=9),
]
NAME = "dovetail encoding"


def opened(backend: str = APART, model: str = "", rig: str = RIG, **where: Any) -> Runner:
    return Runner(Opening(model, Where(backend=backend, rig=rig, auto_fit=False, vae_tiling="off", **where)))


@pytest.fixture(scope="module")
def runner() -> Iterator[Runner]:
    found = opened()
    yield found
    found.close()


@pytest.fixture(scope="module")
def plain(runner: Runner) -> list[Image.Image]:
    """The pictures of the jobs without anything that runs ahead."""
    return [runner.run(job)[0] for job in JOBS]


def ahead(runner: Runner, jobs: Sequence[Job]) -> list[Image.Image]:
    """The first picture of each job of a list, each of which knows the next."""
    found = []
    for job, following in zip(jobs, [*jobs[1:], None], strict=True):
        runner.expect(following)
        found.append(runner.run(job)[0])
    return found


def same(first: Image.Image, second: Image.Image) -> bool:
    return first.size == second.size and ImageChops.difference(first, second).getbbox() is None


def all_same(found: Sequence[Image.Image], expected: Sequence[Image.Image]) -> bool:
    return all(map(same, found, expected)) and len(found) == len(expected)


def threads() -> list[threading.Thread]:
    return [one for one in threading.enumerate() if one.name == NAME]


def taken(runner: Runner, jobs: Sequence[Job]) -> int:
    """How many calls of encoders of a list were answered with what was encoded ahead."""
    before = runner.ahead.taken
    ahead(runner, jobs)
    return runner.ahead.taken - before


@pytest.mark.fifth
def test_pictures_are_those_without_and_all_calls_of_encoders_are_answered(
    runner: Runner, plain: list[Image.Image]
) -> None:
    before = runner.ahead.taken
    assert all_same(ahead(runner, JOBS), plain)
    assert runner.ahead.taken - before == 2 * len(JOBS[1:]) * 2  # two encoders, for the prompt and the negative one
    assert not threads()


@pytest.mark.fifth
def test_encoders_run_while_the_job_before_is_sampled_and_not_in_their_own_job(
    runner: Runner, plain: list[Image.Image], monkeypatch: pytest.MonkeyPatch
) -> None:
    ran: Counter[tuple[str, str]] = Counter()
    encoded = threading.Event()
    call, keep = CompiledModule.__call__, Encoded.keep

    def counted(self: CompiledModule, *args: Any, **kwargs: Any) -> Any:
        where = "ahead" if threading.current_thread().name == NAME else "here"
        ran[where, self.program.name] += 1
        return call(self, *args, **kwargs)

    def kept(self: Encoded, one: Any) -> None:
        keep(self, one)
        if len(self) == 4:
            encoded.set()

    def on_step(done: int, total: int, latents: object) -> None:
        assert done < 2 or encoded.wait(60)  # which nothing else lets go on

    monkeypatch.setattr(CompiledModule, "__call__", counted)
    monkeypatch.setattr(Encoded, "keep", kept)
    runner.expect(JOBS[1])
    assert same(runner.run(JOBS[0], on_step)[0], plain[0])
    first = ran.copy()
    assert same(runner.run(JOBS[1])[0], plain[1])
    encoders = {name for where, name in first if where == "ahead"}
    assert len(encoders) == 2
    assert all(first["ahead", name] == first["here", name] == 2 for name in encoders)
    assert all(ran[where, name] == first[where, name] for where in ("here", "ahead") for name in encoders)


@pytest.mark.parametrize(
    "change",
    [
        {"prompt": "a green circle"},
        {"negative_prompt": "a square"},
        {"cfg_scale": 1.0, "guidance": 2.0},
        {"width": 48},
        {"steps": 3},
        {"loras": (("blue", 0.8),)},
    ],
    ids=lambda change: next(iter(change)),
)
@pytest.mark.fifth
def test_a_job_other_than_was_expected_has_its_own_picture(runner: Runner, change: dict[str, Any]) -> None:
    other = replace(JOBS[1], **change)
    expected = runner.run(other)[0]
    runner.expect(JOBS[1])
    runner.run(JOBS[0])
    assert same(runner.run(other)[0], expected)
    runner.expect(other)
    runner.run(JOBS[0])
    assert same(runner.run(other)[0], expected)


@pytest.mark.fifth
def test_nothing_is_encoded_ahead_for_other_loras(runner: Runner) -> None:
    blue = [replace(job, loras=(("blue", 0.8),)) for job in JOBS]
    assert taken(runner, [JOBS[0], blue[1], JOBS[2]]) == 0
    expected = [runner.run(job)[0] for job in blue]
    before = runner.ahead.taken
    assert all_same(ahead(runner, blue), expected)
    assert runner.ahead.taken > before


@pytest.mark.fifth
def test_pictures_of_one_job_run_with_the_next_one_known(runner: Runner, plain: list[Image.Image]) -> None:
    runner.expect(JOBS[1])
    several = runner.run(replace(JOBS[0], seed=6, count=2))
    assert same(several[1], plain[0])
    before = runner.ahead.taken
    assert same(runner.run(JOBS[1])[0], plain[1])
    assert runner.ahead.taken - before == 4


def test_a_cancelled_job_leaves_no_thread_and_nothing_for_the_next(runner: Runner, plain: list[Image.Image]) -> None:
    def stop(done: int, total: int, latents: object) -> None:
        if done == 2:
            raise KeyError("stop")

    runner.expect(JOBS[1])
    with pytest.raises(KeyError, match="stop"):
        runner.run(JOBS[0], stop)
    assert not threads()
    before = runner.ahead.taken
    assert same(runner.run(JOBS[1])[0], plain[1])
    assert runner.ahead.taken == before


def test_a_thread_that_is_asked_to_stop_runs_no_encoder_more(
    runner: Runner, plain: list[Image.Image], monkeypatch: pytest.MonkeyPatch
) -> None:
    ran: list[Any] = []
    begun, stopped = threading.Event(), threading.Event()
    own = Encoding._run

    def waiting(self: Encoding, *args: Any) -> Any:
        ran.append(args[1])
        begun.set()
        assert stopped.wait(60)
        return own(self, *args)

    def stop(done: int, total: int, latents: object) -> None:
        if done == 2:
            assert begun.wait(60)
            timer.start()
            raise KeyError("stop")

    def let_go() -> None:
        while not any(one.is_stopped for one in seen):
            threading.Event().wait(0.001)
        stopped.set()

    seen: list[Encoding] = []
    answer = Encoding.answer
    monkeypatch.setattr(Encoding, "answer", lambda self, *args: (seen.append(self), answer(self, *args))[1])
    monkeypatch.setattr(Encoding, "_run", waiting)
    timer = threading.Thread(target=let_go)
    runner.expect(JOBS[1])
    with pytest.raises(KeyError, match="stop"):
        runner.run(JOBS[0], stop)
    timer.join()
    assert len(ran) == 1
    assert not threads()
    monkeypatch.undo()
    assert same(runner.run(JOBS[1])[0], plain[1])


@pytest.mark.parametrize("error", [RuntimeError, torch.OutOfMemoryError, KeyboardInterrupt])
def test_an_error_of_the_thread_changes_nothing(
    runner: Runner, plain: list[Image.Image], monkeypatch: pytest.MonkeyPatch, error: type[BaseException]
) -> None:
    def fail(*args: Any) -> Any:
        raise error("broken")  # one that outlived the test would keep what its frames have

    monkeypatch.setattr(Encoding, "_run", fail)
    assert all_same(ahead(runner, JOBS[:2]), plain[:2])
    assert not threads()


def test_a_next_job_that_cannot_be_is_told_of_in_its_turn(runner: Runner, plain: list[Image.Image]) -> None:
    wrong = replace(JOBS[1], width=-1)
    runner.expect(wrong)
    assert same(runner.run(JOBS[0])[0], plain[0])


def test_weights_that_are_written_between_are_read(runner: Runner, plain: list[Image.Image]) -> None:
    module = runner.pipe.text_encoder
    weight = next(one for one in module.parameters() if one.ndim == 1 and one.is_floating_point())
    before = weight.detach().clone()
    runner.expect(JOBS[1])
    runner.run(JOBS[0])
    try:
        with torch.no_grad():
            weight.mul_(3)
        taken = runner.ahead.taken
        found = runner.run(JOBS[1])[0]
        assert runner.ahead.taken - taken <= 2  # of the other encoder
        assert same(found, runner.run(JOBS[1])[0])
    finally:
        with torch.no_grad():
            weight.copy_(before)
    assert same(runner.run(JOBS[1])[0], plain[1])


def test_hooks_of_others_are_called_in_their_turn_alone(runner: Runner, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG, "dovetail.jobs.ahead")
    called: list[str] = []
    hook = runner.pipe.transformer.register_forward_hook(lambda *args: called.append(threading.current_thread().name))
    try:
        assert taken(runner, JOBS[:2]) == 0
    finally:
        hook.remove()
    assert "this call could not be planned" in caplog.text
    assert set(called) == {threading.current_thread().name}
    runner.run(JOBS[0])


@pytest.mark.fifth
@pytest.mark.parametrize(
    ("backend", "where", "why"),
    [
        ("sim0", {}, "text_encoder shares sim0 with what samples or decodes"),
        ("te=cpu,diffusion=sim0,vae=cpu", {}, "text_encoder shares cpu with what samples or decodes"),
        (APART, {"params_backend": "te=cpu"}, "text_encoder has weights that come and go"),
        (APART, {"params_backend": "te=disk"}, "text_encoder has weights that come and go"),
    ],
    ids=["one_device", "host_decodes", "from_host", "from_disk"],
)
def test_nothing_is_done_where_devices_do_not_allow(
    backend: str, where: dict[str, Any], why: str, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG, "dovetail.jobs.ahead")
    runner = opened(backend, **where)
    assert taken(runner, JOBS[:2]) == 0
    assert why in caplog.text
    assert not [one for one in caplog.records if one.levelno > logging.DEBUG and "ahead" in one.name]
    runner.close()


@pytest.mark.fifth
def test_nothing_is_done_where_memory_lacks_for_it(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG, "dovetail.jobs.ahead")
    backend, rest = "te=sim3,diffusion=sim2,vae=sim2", "sim3=80MiB,cpu=8GiB"
    loose = opened(backend, rig=f"sim2=80MiB,{rest}")
    loose.run(JOBS[0])
    handle = loose.pipe.dovetail
    generation = handle.planned
    assert generation is not None
    main = generation.main_of("transformer")
    memory = generation.rig[main]
    more = bytes_ahead(generation, front_of(generation, handle.components))[main]
    needed = generation.peaks()[main].total + more + memory.total - memory.free
    loose.close()
    found = []
    for nbytes in (needed - 1, needed):
        runner = opened(backend, rig=f"sim2={nbytes}B,{rest}")
        found.append(taken(runner, JOBS[:2]))
        runner.close()
    assert more > 0
    assert found == [0, 4]
    assert "sim2 has" in caplog.text


@pytest.mark.fifth
def test_memory_is_level_and_within_what_was_checked() -> None:
    runner = opened()
    jobs = [replace(JOBS[0], seed=number) for number in range(10)]
    devices = [torch.device("sim", 0), torch.device("sim", 1)]
    before = [accelerator_of(one).memory()[0] for one in devices]
    ahead(runner, jobs[:2])
    gc.collect()
    level = [accelerator_of(one).memory()[0] for one in devices]
    for one in devices:
        accelerator_of(one).reset_peak()
    ahead(runner, jobs)
    gc.collect()
    assert [accelerator_of(one).memory()[0] for one in devices] == level
    handle = runner.pipe.dovetail
    generation = handle.planned
    more, peaks = bytes_ahead(generation, front_of(generation, handle.components)), generation.peaks()
    for device, held in zip(devices, before, strict=True):
        named = next(one for one in generation.rig if one.torch == device)
        assert accelerator_of(device).memory()[1] - held <= peaks[named].total + more[named]
    runner.close()


PLACES = {"apart": APART, "host": "te=cpu,diffusion=sim0,vae=sim0", "several": "te=sim1&sim2,diffusion=sim0,vae=sim0"}


@pytest.mark.slow
@pytest.mark.parametrize("place", list(PLACES))
@pytest.mark.parametrize("name", ["sd", "sdxl", "sd3", "flux", "wan", "aura", "qwen"])
def test_any_pipeline(name: str, place: str, tmp_path: Path) -> None:
    every_pipeline.EVERY_PIPELINE[name]()[0].save_pretrained(tmp_path)
    runner = opened(PLACES[place], str(tmp_path), "sim0=80MiB,sim1=80MiB,sim2=80MiB,cpu=8GiB")
    jobs = [replace(job, width=16, height=16) for job in JOBS]
    expected = [runner.run(job)[0] for job in jobs]
    before = runner.ahead.taken
    assert all_same(ahead(runner, jobs), expected)
    assert runner.ahead.taken > before
    runner.close()


def test_the_likely_next_job_of_a_replica_is_the_one_after_those_of_the_others() -> None:
    waiting = Waiting(3)
    promised = [Promised(replace(JOBS[0], seed=seed), lambda *_: None) for seed in range(5)]
    for one in promised:
        waiting.put(one)
    assert waiting.take(1) is promised[0]
    assert waiting.likely() == promised[3].job
    promised[1].cancel()
    assert waiting.likely() == promised[4].job
    assert waiting.take(1) is promised[2]
    assert waiting.likely() is None


class Told:
    """A painter that notes which jobs it is told of, and a line that hears nothing."""

    def __init__(self) -> None:
        self.told: list[tuple[int | None, int]] = []
        self._expected: Job | None = None

    def expect(self, job: Job | None) -> None:
        self._expected = job

    def run(self, job: Job, on_step: Any) -> list[Image.Image]:
        self.told.append((self._expected.seed if self._expected is not None else None, job.seed))
        return [Image.new("RGB", (2, 2))]

    def check(self, job: Job) -> None:
        pass

    def facts(self) -> Facts:
        return Facts({}, {})

    def tell(self, what: str, data: bytes = b"", **said: Any) -> bool:
        assert what == "done"
        return True


def test_a_list_tells_of_the_line_that_comes_next(tmp_path: Path) -> None:
    lines = [Line(number, replace(JOBS[0], seed=number)) for number in range(1, 4)]
    lines.insert(1, Line(9, error="this is no JSON"))
    painter = Told()
    Work(lines, Record(Record.beside(tmp_path / "out.png"), {}, 0), lambda line, pictures: []).alone(painter)
    assert painter.told == [(2, 1), (3, 2), (None, 3)]


def test_a_replica_tells_its_painter_of_the_job_that_likely_comes_next() -> None:
    painter = Told()
    replica = Replica(cast("Wire", painter))
    for following in (replace(JOBS[0], seed=5).to_json(), ""):
        said = {"number": 1, "job": JOBS[0].to_json(), "following": following, "latents": False}
        replica._do(painter, Message("paint", said, b""), 1)
    assert painter.told == [(5, 7), (None, 7)]


def test_attention_without_dropout_draws_no_numbers() -> None:
    attention, x = torch.ops.aten.scaled_dot_product_attention.default, torch.zeros(1)
    assert not draws_numbers(attention, (x, x, x), {})
    assert draws_numbers(attention, (x, x, x, None, 0.1), {})
    assert draws_numbers(torch.ops.aten.randn.default, ([1],), {})
    assert not draws_numbers(torch.ops.aten.randn.generator, ([1],), {"generator": torch.Generator()})
    assert not draws_numbers(torch.ops.aten.add.Tensor, (x, x), {})
