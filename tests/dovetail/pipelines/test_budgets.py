"""Whole pipelines on one device that is granted a part of their weights' bytes: the same picture, within the budget."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from typing import Any

import pytest
import torch

import dovetail
from dovetail.compiler.errors import DoesNotFitError
from dovetail.runtime import sim
from testbed.pipelines.every_pipeline import EVERY_PIPELINE, result
from tests.cases import slow_but

PARTS = (0.7, 0.5, 0.3)
NAMES = ("flux", "sd", "sdxl", "sd3", "wan", "chroma", "pixart", "sd_controlnet", "kandinsky", "flux_controlnet",
         "sd_img2img", "flux_fill")  # fmt: skip
OF_THE_PIPELINE = 4096
"""Bytes of latents, embeddings and schedules that the pipelines' own Python may have on the device besides."""


@pytest.fixture(autouse=True)
def _sims() -> Iterator[None]:
    gc.collect()
    sim.enable()
    yield
    gc.collect()
    sim.enable()


def bytes_of(pipe: Any) -> int:
    modules = (one for one in pipe.components.values() if isinstance(one, torch.nn.Module))
    return sum(parameter.nbytes for module in modules for parameter in module.parameters())


@pytest.mark.parametrize("part", PARTS)
@pytest.mark.parametrize("name", slow_but(["flux"], NAMES))
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
    assert peak <= budget + OF_THE_PIPELINE
    handle.undo()


def test_a_budget_that_cannot_be_met_is_refused_before_anything_is_brought() -> None:
    pipe, call = EVERY_PIPELINE["flux"]()
    budget = bytes_of(pipe) // 20
    handle = dovetail.compile_pipeline(pipe, "sim0", params_backend="cpu", max_vram=f"sim0={budget}B", rig="sim0=1GiB")
    before = sim.stats(0).bytes_in
    with pytest.raises(DoesNotFitError, match="on sim0"):
        result(pipe, call)
    assert sim.stats(0).bytes_in == before
    handle.undo()
