"""Planning a pipeline without computing anything."""

import gc
import re
from collections.abc import Iterator
from typing import Any

import pytest
import torch

from dovetail import compile_pipeline, demo, load_pipeline
from dovetail.compiler.errors import CallError
from dovetail.compiler.frontend.fakes import has_numbers
from dovetail.pipelines.dryrun import DryPipeline
from dovetail.pipelines.loading.saved import open_pipeline
from testbed.pipelines.every_pipeline import EVERY_PIPELINE
from tests.cases import slow_but

REQUEST = {"backend": "diffusion=sim0&sim1,te=sim1,vae=sim0", "rig": "sim0=1GiB,sim1=1GiB,cpu=4GiB"}
CALL = {**demo.CALL_DEFAULTS, "num_inference_steps": 1}


@pytest.fixture(autouse=True)
def _let_go() -> Iterator[None]:
    yield
    gc.collect()


def dry_pipeline(**request: Any) -> DryPipeline:
    pipe, origins = open_pipeline(demo.folder(), dtype=torch.float32)
    pipe.set_progress_bar_config(disable=True)
    return DryPipeline(pipe, {**REQUEST, **request}, origins=origins)


def test_what_is_planned_is_what_runs() -> None:
    dry = dry_pipeline()
    dry("a red circle", **CALL)
    real = load_pipeline(demo.folder(), **REQUEST, dtype=torch.float32)
    real("a red circle", **CALL)
    ran = {placed(program) for programs in real.dovetail.programs.values() for program in programs}
    assert {placed(plan) for plan in dry.plans().values()} == ran


def placed(program: Any) -> str:
    """A program, without what is free: what a pipeline holds of devices is known only where it runs on them."""
    return re.sub(r"(?m)^devices .*$", "", str(program))


@pytest.mark.parametrize(
    "name", slow_but(["sd_inpaint"], ["sd_inpaint", "sd", "flux_img2img", "lumina", "svd", "wan", "sdxl_adapter"])
)
def test_what_the_pipeline_computes_itself_is_counted_as_it_is_where_it_runs(name: str) -> None:
    """Pictures that were given, noise, and latents lie on a device that is none of the rig's while a plan is made."""
    request = {"rig": "sim0=1GiB,sim1=1GiB,cpu=4GiB", "backend": "te=sim1,diffusion=sim0&sim1,vae=sim0"}
    pipe, call = EVERY_PIPELINE[name]()
    dry = DryPipeline(pipe, request, vae_tiling="off")
    assert dry.main not in dry.rig
    planned = dry(**call)
    pipe, call = EVERY_PIPELINE[name]()
    compiled = compile_pipeline(pipe, **request, vae_tiling="off")
    there = compiled.dovetail.plan(**call)
    assert planned is not None
    assert [(one.held, one.since) for one in planned._visits] == [(one.held, one.since) for one in there._visits]
    assert {one: peak.total for one, peak in planned.peaks().items()} == {
        one: peak.total for one, peak in there.peaks().items()
    }


@pytest.mark.slow
def test_plans_stand_in_the_order_of_their_calls() -> None:
    dry = dry_pipeline()
    dry("a red circle", **CALL)
    assert list(dry.plans()) == ["text_encoder", "text_encoder_2", "transformer", "vae.decode"]


@pytest.mark.slow
def test_another_size_is_another_plan() -> None:
    dry = dry_pipeline()
    dry("a red circle", **CALL)
    dry("a red circle", **{**CALL, "height": 32})
    assert [name for name in dry.plans() if name.startswith("transformer")] == ["transformer", "transformer.2"]


def test_no_weight_is_read() -> None:
    dry = dry_pipeline(backend="cuda0&cuda1", rig="cuda0=1GiB,cuda1=1GiB")
    dry("a red circle", **CALL)
    for component in dry.components.values():
        assert not any(map(has_numbers, component.module.parameters()))


@pytest.mark.slow
def test_a_plan_answers_only_the_call_it_was_made_for() -> None:
    dry = dry_pipeline()
    dry("a red circle", **CALL)
    with pytest.raises(CallError):
        dry.plans()["vae.decode"](torch.zeros(1, 8, 4, 4))
