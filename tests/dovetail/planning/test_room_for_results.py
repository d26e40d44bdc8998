"""What the pipeline itself holds of results of its components: all that comes to its device, though it drops most."""

from __future__ import annotations

import gc
from typing import Any

import diffusers
import pytest
import torch
from diffusers.configuration_utils import ConfigMixin, register_to_config
from torch import nn

import dovetail
from dovetail.compiler.errors import DoesNotFitError
from dovetail.planning.generation import Generation
from dovetail.planning.lowered import _generation
from dovetail.planning.making import PlanRequest
from dovetail.runtime import sim

pytestmark = pytest.mark.usefixtures("clean_sims")

LAYERS, LENGTH, WIDTH = 16, 256, 32
STATES = LAYERS * LENGTH * WIDTH * 4
"""The bytes of all hidden states."""

TWICE = f"sim0={2 * STATES}B,cpu=1GiB"
HALF = f"sim0={STATES // 2}B,cpu=1GiB"


class Encoder(diffusers.ModelMixin, ConfigMixin):  # type: ignore[misc]
    """Gives what each of its layers has computed."""

    @register_to_config
    def __init__(self, count: int = LAYERS) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(WIDTH, WIDTH) for _ in range(count))

    def forward(self, x: torch.Tensor) -> list[torch.Tensor]:
        states = []
        for layer in self.layers:
            x = layer(x)
            states.append(x)
        return states


class Denoiser(diffusers.ModelMixin, ConfigMixin):  # type: ignore[misc]
    """Reads a little of that."""

    @register_to_config
    def __init__(self, width: int = WIDTH) -> None:
        super().__init__()
        self.layer = nn.Linear(width, width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.relu(self.layer(x))


class Pipeline(diffusers.DiffusionPipeline):  # type: ignore[misc]
    """Reads one token of what the last layer has computed, and drops the rest."""

    def __init__(self, text_encoder: Any, unet: Any) -> None:
        super().__init__()
        self.register_modules(text_encoder=text_encoder, unet=unet)

    @torch.no_grad()
    def __call__(self) -> Any:
        x = torch.ones(1, LENGTH, WIDTH, device=self._execution_device)
        return self.unet(self.text_encoder(x)[-1][:, :1].clone())


def pipeline() -> Pipeline:
    torch.manual_seed(0)
    return Pipeline(Encoder().eval(), Denoiser().eval())


def on_device(plan: Generation) -> int:
    (peak,) = (peak.total for device, peak in plan.peaks().items() if device.is_simulated)
    return peak


@pytest.mark.fifth
def test_results_that_come_from_the_host_are_planned_as_they_are_measured() -> None:
    pipe = pipeline()
    dovetail.compile_pipeline(pipe, "te=cpu,sim0", rig=TWICE)
    plan = pipe.dovetail.plan()
    handle, draft = pipe.dovetail, pipe.dovetail.draft()
    run = handle._planner._trace(handle, draft, handle.rig.host, PlanRequest(None, (), {}), strict=True)
    on_host = _generation(handle, run, draft)
    assert plan is not None
    pipe()
    gc.collect()
    sim.reset_peak(0)
    pipe()
    assert on_device(plan) == sim.stats(0).peak
    assert on_device(on_host) > STATES  # where what it makes itself is not counted
    pipe.dovetail.undo()


@pytest.mark.fifth
def test_a_call_whose_results_do_not_fit_is_refused_before_anything_is_computed() -> None:
    pipe = pipeline()
    dovetail.compile_pipeline(pipe, "te=cpu,sim0", rig=HALF)
    with pytest.raises(DoesNotFitError, match=r"results of components among them") as refused:
        pipe()
    assert '--backend "cpu' in str(refused.value)
    assert not any(program.held() for programs in pipe.dovetail.programs.values() for program in programs)
    pipe.dovetail.undo()


def test_no_way_out_is_offered_in_which_they_do_not_fit_either() -> None:
    pipe = pipeline()
    dovetail.compile_pipeline(pipe, "sim0", rig=HALF)
    with pytest.raises(DoesNotFitError) as refused:
        pipe.dovetail.plan()
    assert "te=cpu,sim0" not in str(refused.value)
    pipe.dovetail.undo()


def test_devices_that_are_found_have_room_for_them() -> None:
    pipe = pipeline()
    expected = pipe()
    dovetail.compile_pipeline(pipe, rig=HALF)
    assert torch.equal(pipe().cpu(), expected)
    pipe.dovetail.undo()


@pytest.mark.fifth
@pytest.mark.parametrize("backend", [None, "sim0", "te=cpu,sim0"])
def test_a_plan_itself_holds_no_more_than_the_budget(backend: str | None) -> None:
    pipe = pipeline()
    dovetail.compile_pipeline(pipe, backend, rig=TWICE, max_vram=f"sim0={STATES // 2}B")
    sim.reset_peak(0)
    try:
        pipe.dovetail.prepare()
    except DoesNotFitError:
        assert backend is not None
    assert sim.stats(0).peak <= STATES // 2
    pipe.dovetail.undo()
