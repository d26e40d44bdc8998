"""Weights that do not fit together where they were to run share the devices by phases, or are streamed, untold."""

from __future__ import annotations

import logging
from typing import Any

import pytest
import torch

import dovetail
from dovetail.compiler.errors import DoesNotFitError
from dovetail.runtime import sim
from testbed.pipelines import tiny_pipelines

pytestmark = pytest.mark.usefixtures("clean_sims")

EXPERT = "te=sim1,diffusion=sim0+sim1,vae=sim0"


def painted(pipe: Any, call: dict[str, Any]) -> torch.Tensor:
    with torch.no_grad():
        return pipe(**call, generator=torch.Generator().manual_seed(0), output_type="pt").images.cpu()


def compared(made: Any, sizes: dict[int, str], **options: Any) -> dict[str, str]:
    """Paints in eager and compiled on devices of such sizes, compares, and gives where weights rest by component."""
    pipe, call = made()
    before = painted(pipe, call)
    rig = ",".join(f"sim{index}={size}" for index, size in sizes.items())
    dovetail.compile_pipeline(pipe, rig=f"{rig},cpu=1GiB", **options)
    after = painted(pipe, call)
    assert torch.equal(before, after)
    for index in sizes:
        assert sim.stats(index).peak <= sim.capacity(index)
    rests = {name: one.view.residency.value for name, one in pipe.dovetail.components.items()}
    pipe.dovetail.undo()
    return rests


@pytest.mark.fifth
def test_a_single_device_time_shares_weights_that_do_not_fit_together(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING):
        rests = compared(tiny_pipelines.flux, {0: "420KiB"}, backend="sim0")
    assert "cpu" in rests.values()
    (told,) = [one.getMessage() for one in caplog.records if "--params-backend" in one.getMessage()]
    assert all(f"{name}=cpu" in told for name, place in rests.items() if place == "cpu")


@pytest.mark.fifth
def test_what_fits_stays_where_it_runs_and_nothing_is_said(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING):
        rests = compared(tiny_pipelines.flux, {0: "64MiB"}, backend="sim0")
    assert set(rests.values()) == {"device"}
    assert not [one for one in caplog.records if "--params-backend" in one.getMessage()]


@pytest.mark.fifth
def test_weights_that_were_told_to_stay_are_refused_where_they_do_not_fit() -> None:
    pipe, call = tiny_pipelines.flux()
    dovetail.compile_pipeline(pipe, rig="sim0=420KiB,cpu=1GiB", backend="sim0", params_backend="sim0")
    with pytest.raises(DoesNotFitError, match="what fits, best first:"):
        painted(pipe, call)
    pipe.dovetail.undo()


@pytest.mark.fifth
def test_without_auto_fit_nothing_is_searched_and_what_does_not_fit_is_refused_with_ways_out() -> None:
    pipe, call = tiny_pipelines.flux()
    dovetail.compile_pipeline(pipe, rig="sim0=420KiB,cpu=1GiB", auto_fit=False)
    with pytest.raises(DoesNotFitError, match=r"on sim0[\s\S]*what fits, best first:[\s\S]*--params-backend"):
        painted(pipe, call)
    assert pipe.dovetail.decision is None
    assert {one.view.residency.value for one in pipe.dovetail.components.values()} == {"device"}
    assert {str(one.devices[0]) for one in pipe.dovetail.components.values()} == {"sim0"}
    pipe.dovetail.undo()


@pytest.mark.fifth
@pytest.mark.few(1)
@pytest.mark.parametrize("shares", [None, "diffusion=64:36"])
def test_an_encoder_is_brought_to_a_device_that_a_part_of_the_denoiser_shares(shares: str | None) -> None:
    """The encoders' weights rest in host memory, the denoiser lies over both devices: as experts type it."""
    sizes = {0: "300KiB", 1: "220KiB"}
    rests = compared(tiny_pipelines.flux, sizes, backend=EXPERT, params_backend="te=cpu", tensor_split=shares)
    assert rests["text_encoder_2"] == "cpu"


@pytest.mark.fifth
def test_what_fits_with_weights_in_host_memory_and_small_stages_fits_untold(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING):
        rests = compared(tiny_pipelines.flux, {0: "110KiB"}, backend="sim0")
    assert set(rests.values()) == {"cpu"}
    assert any("--params-backend" in one.getMessage() for one in caplog.records)
