"""Whole pipelines on one device that is granted a part of their weights' bytes: the same picture, within the budget."""

from __future__ import annotations

import gc
from typing import Any

import pytest
import torch

import dovetail
from dovetail.compiler.errors import DoesNotFitError
from dovetail.runtime import sim
from testbed.pipelines.every_pipeline import EVERY_PIPELINE, result
from tests.cases import slow_but

pytestmark = pytest.mark.usefixtures("clean_sims")

NAMES = ("flux", "sd", "sdxl", "pixart", "sd_controlnet", "kandinsky", "flux_controlnet", "sdxl_controlnet", "sd_pag",
         "lcm", "sdxl_pag", "sd_controlnet_pag")  # fmt: skip
CASES = [*((name, part) for part in (0.7, 0.5, 0.3) for name in NAMES),
         *((name, part) for part in (0.7, 0.5) for name in ("sd3", "wan", "chroma"))]  # fmt: skip
"""The last three have more values than 0.3 of their weights leave room for beside what the pipeline itself holds."""


def bytes_of(pipe: Any) -> int:
    modules = (one for one in pipe.components.values() if isinstance(one, torch.nn.Module))
    return sum(parameter.nbytes for module in modules for parameter in module.parameters())


@pytest.mark.parametrize(("name", "part"), slow_but([("flux", 0.7), ("flux", 0.3)], CASES))
def test_a_pipeline_paints_the_same_picture_within_a_part_of_its_weights(name: str, part: float) -> None:
    pipe, call = EVERY_PIPELINE[name]()
    expected, budget = result(pipe, call), int(part * bytes_of(pipe))
    gc.collect()
    before = sim.stats(0).in_use
    sim.reset_peak(0)
    handle = dovetail.compile_pipeline(pipe, "sim0", params_backend="cpu", max_vram=f"sim0={budget}B", rig="sim0=1GiB")
    found = result(pipe, call)
    peak = sim.stats(0).peak - before
    assert all(map(torch.equal, found, expected))
    assert peak <= budget
    handle.undo()


def test_a_budget_that_cannot_be_met_is_refused_before_anything_is_brought() -> None:
    pipe, call = EVERY_PIPELINE["flux"]()
    budget = bytes_of(pipe) // 20
    handle = dovetail.compile_pipeline(pipe, "sim0", params_backend="cpu", max_vram=f"sim0={budget}B", rig="sim0=1GiB")
    with pytest.raises(DoesNotFitError, match="on sim0"):
        result(pipe, call)
    assert not handle.programs
    gc.collect()
    assert sim.stats(0).in_use == 0
    handle.undo()
