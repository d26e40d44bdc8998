"""Whole tiny pipelines of which a component is split: two cells are drawn for each run, all are benchmarked."""

from __future__ import annotations

import pytest
import torch

from dovetail.runtime import sim
from testbed.mode_pipelines import MICRO, Cell, cells, enlarged, judge
from tests.cases import drawn

SEED = 20
JUDGED = (
    "flux", "flux_img2img", "sd", "sd_safe", "sd_img2img", "sd_inpaint", "sd_controlnet", "sdxl", "sd3", "qwen", "ltx",
    "sana", "cogvideox", "svd", "dit", "pixart",
)  # fmt: skip
"""Pipelines of which nothing was wrong with this seed; `python -m benchmarks.mode_pipelines` judges all."""


@pytest.mark.slow
@pytest.mark.parametrize("name", drawn(JUDGED, 2))
def test_a_pipeline_is_near_float64_in_the_bytes_that_were_planned(name: str) -> None:
    sim.enable()
    for cell in cells(name, SEED):
        verdict = judge(cell)
        assert not verdict.wrong, f"{cell}: {verdict.wrong}"
        assert verdict.judged


@pytest.mark.slow
def test_pictures_are_split_by_the_halves_of_guidance() -> None:
    sim.enable()
    verdict = judge(Cell("sd", "unet", "batch", (1, 1), "fp32"))
    assert not verdict.wrong, verdict.wrong
    assert verdict.is_split
    assert verdict.judged == ["picture, forward", "other size, forward", "several, forward"]


@pytest.mark.slow
@pytest.mark.parametrize(("name", "component"), [("sd", "unet"), ("flux", "transformer")])
def test_pictures_go_through_a_layer_split_in_micro_batches(name: str, component: str) -> None:
    sim.enable()
    verdict = judge(Cell(name, component, MICRO, (1, 1), "fp32"))
    assert not verdict.wrong, verdict.wrong
    assert verdict.is_split
    assert "several, forward" in verdict.judged


def test_what_is_drawn_follows_from_the_seed() -> None:
    assert cells("sd", 1) == cells("sd", 1)
    assert len({str(cells("sd", seed)) for seed in range(8)}) > 1


def test_given_pictures_are_made_larger_with_the_asked_size() -> None:
    call = enlarged({"prompt": "x", "height": 16, "width": 16, "image": torch.zeros(1, 3, 16, 16)}, 64)
    assert (call["height"], call["width"], call["prompt"]) == (64, 64, "x")
    assert call["image"].shape == (1, 3, 64, 64)
