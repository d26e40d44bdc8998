"""A plan that is remembered counts what calls of other pipelines over the same components have brought since."""

from __future__ import annotations

from typing import Any

import diffusers
import pytest
import torch

import dovetail
from dovetail.pipelines.pipeline_state import bring_state
from dovetail.runtime import sim
from testbed.pipelines import tiny_pipelines

pytestmark = pytest.mark.usefixtures("clean_sims")


def painted(pipe: Any, call: dict[str, Any], beside: int) -> tuple[int, int]:
    """The bytes of a call on the device, as they are planned and as they were, less those of others there."""
    planned = pipe.dovetail.plan(**call)
    sim.reset_peak(0)
    pipe(**call)
    bring_state(pipe, torch.device("cpu"))  # what one leaves in the scheduler that they share is not what is meant here
    return next(peak.total for device, peak in planned.peaks().items() if device.is_simulated), sim.stats(
        0
    ).peak - beside


def over(**options: Any) -> tuple[Any, dict[str, Any], Any, dict[str, Any]]:
    """A pipeline that makes pictures of prompts, and one over its components that begins with one, which it encodes."""
    pipe, call = tiny_pipelines.sd()
    dovetail.compile_pipeline(pipe, backend="sim0", vae_tiling="off", **options)
    other = diffusers.StableDiffusionImg2ImgPipeline.from_pipe(pipe)
    begins = {name: value for name, value in call.items() if name not in ("height", "width")}
    begins |= {"image": torch.rand(1, 3, 16, 16), "strength": 1.0}
    return pipe, {**call, "height": 2 * call["height"], "width": 2 * call["width"]}, other, begins


@pytest.mark.slow
def test_a_remembered_plan_counts_what_others_have_brought() -> None:
    beside = sim.stats(0).in_use
    pipe, call, other, begins = over()
    before, _ = painted(pipe, call, beside)
    painted(other, begins, beside)
    planned, measured = painted(pipe, call, beside)
    assert before < planned
    assert measured <= planned


@pytest.mark.fifth
def test_what_others_have_brought_leaves_where_a_budget_is_too_small_for_both() -> None:
    budget, beside = 730_000, sim.stats(0).in_use
    pipe, call, other, begins = over(max_vram=f"sim0={budget}B")
    for one, its in ((pipe, call), (other, begins), (pipe, call), (pipe, call), (other, begins)):
        planned, measured = painted(one, its, beside)
        assert measured <= planned <= budget
