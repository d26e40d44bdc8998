"""One pipeline that stays loaded: the pictures of generate, cancelled jobs, LoRAs, pictures to begin with."""

from __future__ import annotations

import io
import itertools
import os
import pickle
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from PIL import Image, ImageChops

from dovetail.cli.options.shared import Where
from dovetail.compiler.errors import AdapterError, DoesNotFitError, UsageError
from dovetail.jobs.about import About
from dovetail.jobs.adapters import Shelf
from dovetail.jobs.job import Job
from dovetail.jobs.replicas.payload import error_of, told_of
from dovetail.jobs.runner import Opening, Runner
from tests.command_line import done
from tests.dovetail.recovery.injected import Injected

RIG = "sim0=40MiB,cpu=8GiB"
PLAIN = Job("a red circle", width=32, height=32, steps=2, seed=7)
BLUE = replace(PLAIN, loras=(("blue", 0.8),))


@pytest.fixture(scope="module")
def runner() -> Runner:
    return Runner(Opening(where=Where(backend="sim0", rig=RIG, auto_fit=False, vae_tiling="off")))


def same(first: Image.Image, second: Image.Image) -> bool:
    return first.size == second.size and ImageChops.difference(first, second).getbbox() is None


def png(picture: Image.Image) -> bytes:
    file = io.BytesIO()
    picture.save(file, format="png")
    return file.getvalue()


def generated(path: Path, *words: str) -> Image.Image:
    placed = ("--backend", "sim0", "--rig", RIG)
    done("generate", "a red circle", "--steps", "2", "--size", "32", "-s", "7", "-o", str(path), *placed, *words)
    return Image.open(path)


@pytest.mark.fifth
def test_a_seed_gives_the_picture_that_generate_paints(runner: Runner, tmp_path: Path) -> None:
    told: list[tuple[int, int]] = []
    found = runner.run(PLAIN, lambda step, steps, latents: told.append((step, steps)))[0]
    assert same(found, generated(tmp_path / "plain.png"))
    assert told == [(0, 2), (1, 2), (2, 2)]


@pytest.mark.fifth
def test_a_lora_stays_no_longer_than_it_is_asked_for(runner: Runner) -> None:
    before, with_lora = runner.run(PLAIN)[0], runner.run(BLUE)[0]
    assert not same(with_lora, before)
    assert same(runner.run(PLAIN)[0], before)
    assert same(runner.run(BLUE)[0], with_lora)


@pytest.mark.fifth
def test_of_a_damaged_lora_its_name_alone_is_told_and_its_path_to_the_log(
    runner: Runner, tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("fastapi")
    from dovetail.serve.api.problems import problem_of

    place = tmp_path / "cut.safetensors"
    place.write_bytes(runner.shelf.files["blue"].read_bytes()[:500])
    before = runner.run(PLAIN)[0]
    monkeypatch.setattr(runner, "shelf", Shelf({**runner.shelf.files, "cut": place}))
    damaged = replace(PLAIN, loras=(("blue", 1.0), ("cut", 1.0)))
    for does in (runner.run, runner.check):
        with pytest.raises(AdapterError) as raised:
            does(damaged)
        told = error_of(told_of(raised.value))
        assert problem_of(told).status == 500
        assert problem_of(told).message.startswith("the LoRA cut cannot be applied")
        assert str(tmp_path) not in problem_of(told).message
        assert str(place) in caplog.text
    assert same(runner.run(PLAIN)[0], before)


@pytest.mark.slow
def test_a_lora_gives_the_picture_that_generate_paints(runner: Runner, tmp_path: Path) -> None:
    assert same(runner.run(BLUE)[0], generated(tmp_path / "lora.png", "--lora", "blue:0.8"))


def test_each_picture_of_a_job_has_the_next_seed_and_is_the_one_that_it_is_alone(runner: Runner) -> None:
    several = runner.run(Job("a red circle", width=32, height=32, steps=2, seed=6, count=2))
    assert len(several) == 2
    assert same(several[1], runner.run(PLAIN)[0])


@pytest.mark.fifth
def test_jobs_that_are_painted_together_are_those_that_they_are_alone_but_for_rounding(runner: Runner) -> None:
    jobs = [PLAIN, replace(PLAIN, prompt="a blue square", seed=9)]
    for [together], job in zip(runner.run_together(jobs), jobs, strict=True):
        differences = ImageChops.difference(together, runner.run(job)[0]).getextrema()
        assert max(most for _, most in differences) <= 2


def test_what_is_raised_at_a_step_ends_the_job_and_leaves_the_pipeline_ready(runner: Runner) -> None:
    before = runner.run(PLAIN)[0]

    def stop(step: int, steps: int, latents: object) -> None:
        if step == 1:
            raise KeyError("stop")

    with pytest.raises(KeyError, match="stop"):
        runner.run(PLAIN, stop)
    assert same(runner.run(PLAIN)[0], before)


@pytest.mark.fifth
def test_a_picture_to_begin_with_and_a_mask(runner: Runner) -> None:
    begun = png(Image.new("RGB", (32, 32), "green"))
    mask = png(Image.new("L", (32, 32), 255))
    assert runner.about() == About(["blue"], "FlowMatchEulerDiscreteScheduler", ["image", "mask"], (64, 64), 16)
    for job in (
        Job("a red circle", steps=4, image=begun, strength=0.5),
        Job("a red circle", steps=4, image=begun, mask=mask, strength=0.5),
    ):
        told: list[tuple[int, int]] = []
        assert runner.run(job, lambda step, steps, latents, told=told: told.append((step, steps)))[0].size == (32, 32)
        assert told[-1] == (2, 2), "only the steps that are made are counted"


@pytest.mark.fifth
def test_a_size_that_does_not_fit_is_refused_with_the_words_of_the_plan(runner: Runner) -> None:
    before = runner.run(PLAIN)[0]
    with pytest.raises(DoesNotFitError, match=r"AutoencoderKL needs .* on sim0, which has"):
        runner.check(Job("a red circle", width=256, height=256, steps=1))
    assert same(runner.run(PLAIN)[0], before)


def test_a_job_for_which_memory_runs_out_leaves_the_next_as_it_was(
    runner: Runner, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = runner.run(PLAIN)[0]
    with monkeypatch.context() as patch:
        Injected(patch).fails = lambda _: True
        with pytest.raises((DoesNotFitError, torch.OutOfMemoryError)):
            runner.run(PLAIN)
    assert same(runner.run(PLAIN)[0], before)


@pytest.mark.parametrize(
    ("job", "message"),
    [
        (Job("a", loras=(("../blue", 1.0),)), "no LoRA is called '../blue': did you mean 'blue'?"),
        (Job("a", loras=(("/etc/passwd", 1.0),)), "there are blue"),
        (Job("a", image=b"GIF89a"), "damaged, or no PNG, JPEG, WEBP"),
        (Job("a", image=png(Image.new("1", (5000, 5000)))), "5000 x 5000 pixels"),
        (Job("a", width=32, height=32, steps=300), "steps is 300, and may be 1 to 200"),
    ],
)
def test_what_cannot_be_is_one_clear_error(runner: Runner, job: Job, message: str) -> None:
    with pytest.raises(UsageError) as told:
        runner.run(job)
    assert message in str(told.value)


def test_how_a_pipeline_is_opened_can_be_sent_to_another_process() -> None:
    opening = Opening(where=Where(backend="sim0"), lora_dir="loras", threads=2)
    assert pickle.loads(pickle.dumps(opening)) == opening


def test_what_it_says_of_itself(runner: Runner) -> None:
    runner.run(PLAIN)
    facts = runner.facts()
    assert {"sampling", "decoding"} <= facts.phases.keys()
    assert 0 < facts.devices["sim0"].used <= facts.devices["sim0"].peak
    assert 0 < facts.devices["sim0"].planned <= facts.devices["sim0"].free
    assert facts.devices["cpu"].used > 0
    assert pickle.loads(pickle.dumps(facts)) == facts


def test_jobs_painted_together_are_warned_of_each(runner: Runner, caplog: pytest.LogCaptureFixture) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("dovetail.jobs.runner._warned", itertools.count())
        runner.run_together([replace(PLAIN, prompt="a heptagon"), replace(PLAIN, prompt="an octagon")])
    assert "heptagon" in caplog.text
    assert "octagon" in caplog.text


def test_what_is_said_of_jobs_has_an_end(runner: Runner, caplog: pytest.LogCaptureFixture) -> None:
    pipe, arguments = runner._call(PLAIN)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("dovetail.jobs.runner._warned", itertools.count())
        for number in range(1000):
            runner._warn(pipe, {**arguments, "prompt": "wordy" + chr(97 + number % 26) * (1 + number // 26)})
    assert len(caplog.messages) == 33
    assert caplog.messages[-1] == "32 such warnings were given: there are no more of them"
    assert sum(map(len, caplog.messages)) < 2**15


def test_a_lora_whose_name_no_job_can_say_is_left_out(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    for name in (b"good\xc2\xa0one.safetensors", b"caf\xe9.safetensors"):
        Path(os.fsdecode(os.path.join(os.fsencode(tmp_path), name))).write_bytes(b"")
    assert list(Shelf.of(tmp_path).files) == ["good\xa0one"]
    assert r"left out: caf\udce9: rename them" in caplog.text
