"""What a call is answered does not hang on the calls before it: refused ones leave nothing, accepted ones no bounds."""

from __future__ import annotations

from typing import Any

import pytest
import torch

import dovetail
from dovetail.compiler.errors import DoesNotFitError
from dovetail.pipelines.pipeline import CompiledPipeline
from dovetail.runtime import sim
from testbed.pipelines import tiny_pipelines

pytestmark = pytest.mark.usefixtures("clean_sims")

LARGE = {"height": 64, "width": 64}


def flux(**options: Any) -> tuple[Any, dict[str, Any]]:
    pipe, call = tiny_pipelines.flux()
    return dovetail.compile_pipeline(pipe, **options), call


def painted(pipe: Any, call: dict[str, Any]) -> torch.Tensor:
    with torch.no_grad():
        return pipe(**call, generator=torch.Generator().manual_seed(0), output_type="pt").images.cpu()


def told(pipe: Any, call: dict[str, Any]) -> Any:
    """What is planned of a call: its devices and phases, what it takes, where weights rest; or the refusal.

    Traces are kept of calls that were refused, and one of open sizes has some operations more.
    """
    try:
        plan = pipe.dovetail.plan(**call)
    except DoesNotFitError as error:
        return str(error)
    rests = {name: one.view.residency for name, one in pipe.dovetail.components.items()}
    calls = [(one.title, one.phase, one.program.devices, one.program.residency) for one in plan.calls]
    return calls, {device: peak.total for device, peak in plan.peaks().items() if not device.is_host}, rests


def state_of(pipe: Any) -> Any:
    planner = pipe.dovetail._planner
    return planner.phases, dict(planner.spared), dict(planner.values), dict(planner.held)


@pytest.fixture
def briefly(monkeypatch: pytest.MonkeyPatch) -> None:
    """Has refusals name no ways out, which are searched for seconds."""
    monkeypatch.setattr(CompiledPipeline, "refused", lambda _, error, *__: error)


@pytest.mark.slow
@pytest.mark.usefixtures("briefly")
def test_a_plan_that_was_refused_leaves_the_next_one_what_it_would_be() -> None:
    options = {"backend": "sim0", "params_backend": "cpu", "rig": "sim0=110KiB,cpu=1GiB", "vae_tiling": "off"}
    fresh, call = flux(**options)
    expected = told(fresh, call)
    pipe, _ = flux(**options)
    before = state_of(pipe)
    for many in (32,):
        assert "sim0" in told(pipe, {**call, "height": many, "width": many})
        assert state_of(pipe) == before
    assert told(pipe, call) == expected
    assert not isinstance(expected, str)


@pytest.mark.slow
@pytest.mark.parametrize("backend", [pytest.param("sim0", id="typed"), pytest.param(None, id="searched")])
def test_a_call_is_answered_alike_before_and_after_calls_that_need_less(backend: str | None) -> None:
    options = {"backend": backend, "rig": "sim0=1200KiB,cpu=1GiB", "vae_tiling": "off"}
    eager, call = tiny_pipelines.flux()
    small, large = painted(eager, call), painted(eager, {**call, **LARGE})
    fresh, _ = flux(**options)
    expected = told(fresh, {**call, **LARGE})
    pipe, _ = flux(**options)
    assert torch.equal(painted(pipe, call), small)
    assert told(pipe, {**call, **LARGE}) == expected
    assert not isinstance(expected, str)
    sim.reset_stats(0)
    assert torch.equal(painted(pipe, {**call, **LARGE}), large)
    assert torch.equal(painted(pipe, call), small)
    assert sim.stats(0).peak <= sim.capacity(0)
    pipe.dovetail.undo()
    assert torch.equal(painted(pipe, call), small)


@pytest.mark.slow
@pytest.mark.usefixtures("briefly")
def test_a_call_that_is_refused_leaves_the_programs_and_weights_of_earlier_ones() -> None:
    pipe, call = flux(backend="sim0", rig="sim0=1200KiB,cpu=1GiB", vae_tiling="off")
    before = painted(pipe, call)
    programs, state = pipe.dovetail.programs, state_of(pipe)
    held = {one: one.tensor.device for part in pipe.dovetail.components.values() for one in part.view.weights()}
    with pytest.raises(DoesNotFitError):
        pipe.dovetail.plan(**{**call, "height": 128, "width": 128})
    assert pipe.dovetail.programs == programs
    assert state_of(pipe) == state
    assert all(one.tensor.device == device for one, device in held.items())
    planned = pipe.dovetail._planner.planned
    assert torch.equal(painted(pipe, call), before)
    assert pipe.dovetail._planner.planned == planned
    pipe.dovetail.undo()


@pytest.mark.slow
def test_calls_that_are_placed_alike_keep_each_others_programs() -> None:
    """What fits in tiles alone is planned as a first call is; what was planned before is still known then."""
    pipe, call = flux(backend="sim0", rig="sim0=600KiB,cpu=1GiB", params_backend="cpu")
    large = {**call, **LARGE}
    kinds = [call, large, {**large, "num_inference_steps": 1}]
    for one in kinds:
        pipe.dovetail.plan(**one)
    assert pipe.dovetail._planner.latest.tiles
    planned = pipe.dovetail._planner.planned
    for one in kinds:
        pipe.dovetail.plan(**one)
    assert pipe.dovetail._planner.planned == planned
    pipe.dovetail.undo()
