"""What a call leaves in a pipeline is on its devices in the next one, and is counted there once."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import diffusers
import pytest
import torch

from dovetail import compile_pipeline
from dovetail.compiler.devices.device import Device
from dovetail.runtime import sim
from testbed.pipelines import tiny_pipelines
from tests.cases import slow_but

pytestmark = pytest.mark.usefixtures("clean_sims")


def held(pipe: Any, call: Mapping[str, Any]) -> dict[str, Mapping[Device, int]]:
    """What the pipeline is to hold at each of its calls of components."""
    return {one.title: one.held for one in pipe.dovetail.plan(**call).calls}


@pytest.mark.slow
@pytest.mark.parametrize("made", [tiny_pipelines.flux, tiny_pipelines.sd], ids=lambda one: one.__name__)
def test_what_an_earlier_call_has_left_is_counted_once(made: Any) -> None:
    pipe, call = made()
    smaller = {**call, "height": call["height"] // 2, "width": call["width"] // 2}
    fresh = compile_pipeline(made()[0], backend="sim0")
    used = compile_pipeline(pipe, backend="sim1")
    used(**call)
    by_number = [{title: sum(there.values()) for title, there in held(one, smaller).items()} for one in (fresh, used)]
    assert by_number[0] == by_number[1]
    assert all(tensor.device.type == "sim" for tensor in [used.scheduler.timesteps])


class Remembering(diffusers.EulerDiscreteScheduler):
    """Has tensors in a dictionary, which each step makes anew, and one that larger calls alone make."""

    def step(self, model_output: Any, timestep: Any, sample: Any, *args: Any, **kwargs: Any) -> Any:
        self.held = {"samples": [sample.repeat(1, 16, 1, 1)]}
        if sample.shape[-1] > 8:
            self.large = sample.clone()
        return super().step(model_output, timestep, sample, *args, **kwargs)


@pytest.mark.slow
def test_what_only_other_calls_keep_is_counted_as_is_what_a_call_replaces() -> None:
    beside = sim.stats(2).in_use
    pipe, call = tiny_pipelines.sd()
    pipe.scheduler = Remembering.from_config(pipe.scheduler.config)
    compile_pipeline(pipe, backend="sim2", params_backend="cpu", vae_tiling="off")
    large = call | {"height": 2 * call["height"], "width": 2 * call["width"]}
    for its in (call, large, call, call):
        planned = next(peak.total for at, peak in pipe.dovetail.plan(**its).peaks().items() if at.is_simulated)
        sim.reset_peak(2)
        pipe(**its)
        assert sim.stats(2).peak - beside <= planned


@pytest.mark.slow
@pytest.mark.parametrize(
    "scheduler",
    slow_but(
        ["PNDMScheduler"],
        ["PNDMScheduler", "DPMSolverMultistepScheduler", "UniPCMultistepScheduler", "HeunDiscreteScheduler"],
    ),
)
def test_no_call_takes_more_than_its_plan_whatever_calls_of_other_kinds_have_left(scheduler: str) -> None:
    beside = sim.stats(2).in_use
    pipe, call = tiny_pipelines.sd()
    pipe.scheduler = getattr(diffusers, scheduler).from_config(pipe.scheduler.config)
    compile_pipeline(pipe, backend="sim2", params_backend="cpu", vae_tiling="off")
    other = diffusers.StableDiffusionImg2ImgPipeline.from_pipe(pipe)
    call["num_inference_steps"] = 4  # as few as PNDM takes from a picture
    large = call | {"height": 2 * call["height"], "width": 2 * call["width"]}
    begins = {name: value for name, value in call.items() if name not in ("height", "width")}
    begins |= {"image": torch.rand(1, 3, 16, 16), "strength": 1.0}
    last: Any = None
    for one, its in (
        (pipe, call),
        (pipe, call),
        (pipe, large),
        (pipe, call),
        (pipe, call),
        (other, begins),
        (pipe, call),
    ):
        planned = next(peak.total for at, peak in one.dovetail.plan(**its).peaks().items() if at.is_simulated)
        sim.reset_peak(2)
        one(**its)
        measured = sim.stats(2).peak - beside
        assert measured <= planned
        assert measured == planned or its is not last
        last = its
