"""A mode in which devices compute together, asked for without devices: the search finds which, and says the command."""

from __future__ import annotations

import gc
import logging
import shlex
from typing import Any

import pytest
import torch

import dovetail
from dovetail.compiler.errors import DoesNotFitError
from dovetail.compiler.ir.program import Program
from dovetail.passes.states.states import split_mode_of
from dovetail.pipelines.dryrun import DryPipeline
from dovetail.runtime import sim
from testbed.pipelines.tiny_pipelines import flux, paint, sd
from tests.cases import slow_but

from .test_pictures import NEAR, off, programs_of
from .test_table import Stack, X

ROOMY = "sim0=1GiB,sim1=1GiB,cpu=8GiB"


@pytest.fixture(autouse=True)
def _sims() -> None:
    gc.collect()
    sim.enable()


def programs(pipe: Any, request: dict[str, Any], call: dict[str, Any]) -> tuple[dict[str, Program], dict[str, str]]:
    """The programs of a call on a rig, and the options that ask for the same."""
    dry = DryPipeline(pipe, request)
    try:
        account = dry.account(dry(**call))
        return {title: made.program for title, made in dry.plans().items()}, dict(account.settings)
    finally:
        dry.undo()


def asked_by(settings: dict[str, str]) -> dict[str, str]:
    """A request of what stands in a command."""
    return {option.removeprefix("--").replace("-", "_"): value for option, value in settings.items()}


CASES = [
    ("diffusion=sequence", ROOMY),
    ("diffusion=tensor", ROOMY),
    ("sequence", ROOMY),
    ("diffusion=tensor,vae=spatial", "sim0=1GiB,sim1=1GiB,sim2=1GiB,cpu=8GiB"),
    ("diffusion=sequence", "sim0=300KiB,sim1=300KiB,cpu=8GiB"),
]


@pytest.mark.slow
@pytest.mark.parametrize(("modes", "rig"), slow_but(CASES[1:2], CASES))
def test_the_command_of_what_was_found_asks_for_the_same(modes: str, rig: str) -> None:
    pipe, call = flux()
    made, settings = programs(pipe, {"rig": rig, "split_mode": modes}, call)
    assert split_mode_of(made["transformer"]) == modes.partition("=")[2].partition(",")[0] or modes == "sequence"
    again, typed = programs(pipe, {"rig": rig, **asked_by(settings)}, call)
    assert {title: str(one.schedule) for title, one in again.items()} == {
        title: str(one.schedule) for title, one in made.items()
    }
    assert {option: set(value.split(",")) for option, value in typed.items()} == {
        option: set(value.split(",")) for option, value in settings.items()
    }
    for title, program in made.items():
        split = shlex.split(settings.get("--split-mode", ""))
        assert len(program.devices) > 1 or not any(title.partition(".")[0] in one for one in split)


@pytest.mark.fifth
def test_a_picture_of_what_was_found_is_near_eager() -> None:
    made, call = flux()
    expected = paint(made, call)
    pipe = dovetail.compile_pipeline(made, rig=ROOMY, split_mode={"diffusion": "sequence"})
    with pipe.dovetail:
        assert off(paint(pipe, call), expected) < NEAR
        (program,) = programs_of(pipe)
        assert split_mode_of(program) == "sequence"
        assert len(program.devices) == 2


@pytest.mark.slow
def test_shares_that_are_given_say_how_many_devices_there_are() -> None:
    pipe, call = flux()
    rig = "sim0=1GiB,sim1=1GiB,sim2=1GiB,cpu=8GiB"
    request = {"rig": rig, "split_mode": "diffusion=tensor", "tensor_split": "diffusion=3:1"}
    made, settings = programs(pipe, request, call)
    assert len(made["transformer"].devices) == 2
    assert settings["--tensor-split"] == "diffusion=3:1"


@pytest.mark.fifth
def test_what_cannot_be_split_so_says_why_and_changes_no_bit(caplog: pytest.LogCaptureFixture) -> None:
    made, call = flux()
    expected = paint(made, call)
    pipe = dovetail.compile_pipeline(made, rig=ROOMY, split_mode={"diffusion": "batch"})
    with caplog.at_level(logging.WARNING), pipe.dovetail as handle:
        assert torch.equal(paint(pipe, call).cpu(), expected)
        assert [split_mode_of(one) for one in programs_of(pipe)] == ["layer"]
        assert "--split-mode" not in handle.account(handle.plan(**call)).settings
    assert "transformer cannot be split by batch, for the inputs are of one picture" in caplog.text


@pytest.mark.fifth
def test_one_card_is_not_enough_and_this_is_said(caplog: pytest.LogCaptureFixture) -> None:
    pipe, call = flux()
    with caplog.at_level(logging.WARNING):
        made, settings = programs(pipe, {"rig": "sim0=1GiB,cpu=8GiB", "split_mode": "diffusion=sequence"}, call)
    assert len(made["transformer"].devices) == 1
    assert "--split-mode" not in settings
    assert "there are no two devices of one kind" in caplog.text


@pytest.mark.fifth
@pytest.mark.few(1)
@pytest.mark.parametrize("backend", ["sim0", "diffusion=sim0,te=sim0&sim1,vae=sim0"])
def test_the_command_says_no_mode_of_what_is_on_one_device(backend: str) -> None:
    pipe, call = flux()
    _, settings = programs(pipe, {"rig": ROOMY, "backend": backend, "split_mode": "diffusion=tensor"}, call)
    assert "--split-mode" not in settings


@pytest.mark.slow
def test_a_mode_of_all_is_said_where_one_component_has_it() -> None:
    pipe, call = flux()
    backend = "diffusion=sim0&sim1,te=sim0,vae=sim0"
    _, settings = programs(pipe, {"rig": ROOMY, "backend": backend, "split_mode": "tensor,vae=spatial"}, call)
    assert settings["--split-mode"] == "tensor"


@pytest.mark.few(2)
@pytest.mark.parametrize("mode", ["tensor", "sequence", "batch"])
def test_a_module_without_devices(mode: str) -> None:
    torch.manual_seed(0)
    module = Stack().eval()
    compiled = dovetail.compile(module, (X,), rig=ROOMY, split_mode=mode)
    assert split_mode_of(compiled.program) == mode
    assert len(compiled.program.devices) == 2
    assert torch.allclose(compiled(X).cpu(), module(X), rtol=1e-4, atol=1e-5)


@pytest.mark.fifth
def test_halves_of_guidance_find_their_devices() -> None:
    pipe, call = sd()
    made, settings = programs(pipe, {"rig": ROOMY, "split_mode": "diffusion=batch"}, call)
    assert split_mode_of(made["unet"]) == "batch"
    assert settings["--split-mode"] == "diffusion=batch"


@pytest.mark.slow
def test_what_fits_nowhere_is_refused_with_the_ways_out_that_there_are_without_a_mode() -> None:
    pipe, call = flux()
    told = []
    for modes in ({}, {"split_mode": "diffusion=sequence"}):
        with pytest.raises(DoesNotFitError, match="does not fit") as refused:
            programs(pipe, {"rig": ROOMY, "max_vram": "sim0=60KiB,sim1=60KiB,cpu=100KiB", **modes}, call)
        told.append(str(refused.value))
    assert told[0] == told[1]
    assert "what fits, best first" in told[0]
