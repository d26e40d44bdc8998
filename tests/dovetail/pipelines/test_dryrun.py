"""Planning a pipeline without computing anything."""

import gc
import re
from collections.abc import Iterator
from typing import Any

import diffusers
import pytest
import torch
from diffusers import StableDiffusionPipeline

from dovetail import compile_pipeline, demo, load_pipeline
from dovetail.compiler.errors import CallError
from dovetail.compiler.frontend.fakes import has_numbers
from dovetail.pipelines.dryrun import DryPipeline
from dovetail.pipelines.loading.saved import open_pipeline
from dovetail.planning.generation import Generation
from dovetail.runtime import sim
from testbed.pipelines import tiny_pipelines
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


@pytest.mark.fifth
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


@pytest.mark.fifth
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


def peaks(plan: Generation | None) -> dict[str, int]:
    assert plan is not None
    return {str(device): peak.total for device, peak in plan.peaks().items()}


@pytest.mark.fifth
def test_on_the_host_nothing_is_counted_that_a_call_there_does_not_count() -> None:
    request = {"rig": "cpu=4GiB", "backend": "cpu"}
    pipe, call = EVERY_PIPELINE["sd_inpaint"]()
    planned = DryPipeline(pipe, request)(**call)
    pipe, call = EVERY_PIPELINE["sd_inpaint"]()
    assert peaks(planned) == peaks(compile_pipeline(pipe, **request).dovetail.plan(**call))


def of_cards(device: torch.device) -> None:
    if device.type not in ("cpu", "cuda"):
        raise ValueError(f"no numbers on {device}")


@pytest.mark.fifth
@pytest.mark.few(1)
@pytest.mark.parametrize("own", [of_cards, lambda device: torch.zeros(1, device=device).numpy()])
def test_a_pipeline_whose_code_takes_no_simulated_device_is_planned_on_the_host(own: Any) -> None:
    class Own(StableDiffusionPipeline):
        def prepare_latents(self, *args: Any, **kwargs: Any) -> Any:
            own(self._execution_device)
            return super().prepare_latents(*args, **kwargs)

    pipe, call = EVERY_PIPELINE["sd"]()
    dry = DryPipeline(Own(**pipe.components, requires_safety_checker=False), {"rig": "cuda0=1GiB,cpu=4GiB"})
    assert peaks(dry(**call))["cuda0"] > 0
    assert dry.hook.execution_device == torch.device("cpu"), "as before the plan"


@pytest.mark.fifth
def test_a_generator_of_a_device_of_the_rig_draws_where_the_plan_is_made() -> None:
    pipe, call = EVERY_PIPELINE["sd"]()
    dry = DryPipeline(pipe, {"rig": "sim0=1GiB,cpu=4GiB", "backend": "sim0"})
    generator = torch.Generator("sim:0").manual_seed(3)
    before = generator.get_state()
    assert peaks(dry(**call, generator=generator)) == peaks(dry(**call))
    assert torch.equal(generator.get_state(), before)


def test_the_device_of_a_plan_is_one_that_nobody_else_has_named() -> None:
    """Another one may be full of what a pipeline has there, or keep the capacity of an earlier rig."""
    first = sim.spare([0])
    assert first > 0
    assert sim.spare([0]) == first
    sim.enable({first: 16})
    assert sim.spare([0, first]) == sim.spare([0]) > first


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


@pytest.mark.fifth
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


@pytest.mark.slow
def test_a_pipeline_without_weights_is_planned_again_after_it_was_undone() -> None:
    """Its scheduler computes with numbers of its own, which stay where they are."""
    pipe, call = tiny_pipelines.sd()
    pipe.scheduler = diffusers.EulerDiscreteScheduler.from_config(pipe.scheduler.config)
    for one in (pipe.unet, pipe.vae, pipe.text_encoder):
        one.to("meta")
    for _ in range(2):
        dry = DryPipeline(pipe, {"rig": "cuda0=1GiB,cpu=4GiB"})
        assert dry.plan(**call) is not None
        dry.undo()
        assert pipe.scheduler.sigmas.device.type == "cpu"
