"""Pipelines of one process know what each other, and anybody else, holds of a device when a call is planned."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch

import dovetail
from dovetail.compiler.errors import DoesNotFitError, SpecError
from dovetail.runtime import sim

from ..components.small_pipeline import WIDTH, Model, Pipeline

pytestmark = pytest.mark.usefixtures("clean_sims")

RIG = "sim0=128KiB,cpu=4GiB"  # for one of them, and not for two


@pytest.fixture
def both() -> tuple[list[Any], torch.Tensor, torch.Tensor, torch.Tensor]:
    """Two pipelines of one model, a call, what eager gives for it, and what it gives for the call twice over."""
    torch.manual_seed(0)
    model, x = Model().eval(), torch.randn(2, WIDTH)
    with torch.no_grad():
        want, twice = model(x), model(torch.cat([x, x]))
    pipes = [Pipeline(copy.deepcopy(model)) for _ in range(2)]
    for pipe in pipes:
        dovetail.compile_pipeline(pipe, "sim0", rig=RIG, params_backend="sim0")
    return pipes, x, want, twice


@pytest.mark.fifth
@pytest.mark.parametrize("planned", [pytest.param(False, marks=pytest.mark.slow), True])
def test_a_call_that_does_not_fit_beside_another_pipeline_is_refused_before_it_runs(both: Any, planned: bool) -> None:
    (first, second), x, want, _ = both
    for pipe in (first, second) if planned else ():
        pipe.dovetail.plan(x)
    assert torch.equal(first(x), want)
    held = sim.stats(0).in_use
    for _ in range(2):
        with pytest.raises(DoesNotFitError, match=r"on sim0.* of 128.0 KiB \(74.4 KiB are held by unet of a P"):
            second(x)
    assert sim.stats(0).in_use == held
    assert torch.equal(first(x), want)
    first.dovetail.undo()
    assert torch.equal(second(x), want)
    with pytest.raises(DoesNotFitError):
        dovetail.compile_pipeline(first, "sim0", rig=RIG, params_backend="sim0")(x)
    first.dovetail.undo()
    second.dovetail.undo()


@pytest.mark.fifth
def test_what_no_pipeline_holds_is_said_to_be_held_by_others(both: Any) -> None:
    (first, second), x, _, _ = both
    first(x)
    ballast = torch.empty(40 * 1024, dtype=torch.uint8, device="sim:0")
    told = r"114.4 KiB are held by unet of a Pipeline 74.4 KiB, and other programs, or tensors of this one"
    with pytest.raises(DoesNotFitError, match=told):
        second(x)
    del ballast


@pytest.mark.fifth
def test_what_others_hold_of_a_device_counts_and_what_the_pipeline_itself_holds_does_not(both: Any) -> None:
    (first, _), x, want, twice = both
    assert torch.equal(first(x), want)
    assert torch.equal(first(torch.cat([x, x])), twice)  # planned while its weights are there
    first.dovetail.release()
    first.dovetail.refresh()
    others = torch.empty(40 * 2**10, dtype=torch.uint8, device="sim:0")
    with pytest.raises(DoesNotFitError, match="other programs"):
        first(x.repeat(100, 1))
    del others
    first.dovetail.undo()


def test_a_pipeline_that_was_refused_while_it_was_made_disturbs_no_other(both: Any) -> None:
    (first, _), x, want, _ = both
    with pytest.raises(SpecError) as kept:
        dovetail.compile_pipeline(Pipeline(Model().eval()), "diffusoin=sim0", rig=RIG)
    assert torch.equal(first(x), want)
    assert kept.value, "which keeps what was half made alive"
