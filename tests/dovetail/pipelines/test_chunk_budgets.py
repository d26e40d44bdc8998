"""Whole pipelines on a device that holds them with wide parts in chunks alone: found, and held as it was planned."""

from __future__ import annotations

import gc
import re
import shlex
from collections.abc import Iterator, Mapping
from typing import Any

import pytest
import torch

import dovetail
from dovetail.compiler.errors import DoesNotFitError
from dovetail.passes.rewrites.chunk import chunks_of
from dovetail.planning.generation import Generation
from dovetail.runtime import sim
from testbed.pipelines.every_pipeline import EVERY_PIPELINE, result
from tests.cases import slow_but

pytestmark = pytest.mark.usefixtures("clean_sims")

BACKEND, RIG = "sim0,vae=cpu", "sim0=1GiB,cpu=8GiB"
NAMES = ("flux", "sd", "sdxl", "pixart")


def compiled(name: str, chunk: Any, budget: int = 2**30, **more: Any) -> tuple[Any, dict[str, Any]]:
    pipe, call = EVERY_PIPELINE[name]()
    asked = {
        "backend": BACKEND,
        "vae_tiling": "off",
        "max_vram": f"sim0={budget}B",
        "rig": RIG,
        **more,
    }
    return dovetail.compile_pipeline(pipe, **asked, chunk=chunk), call


def of_call(call: Mapping[str, Any]) -> dict[str, Any]:
    return {"output_type": "pt", "return_dict": False, **call, "generator": torch.Generator().manual_seed(0)}


def planned(pipe: Any, call: Mapping[str, Any]) -> Generation:
    plan = pipe.dovetail.plan(**of_call(call))
    assert plan is not None
    return plan


def peak_on_the_host(name: str) -> int:
    pipe, call = compiled(name, None)
    try:
        plan = planned(pipe, call)
        return next(peak.total for device, peak in plan.peaks().items() if device.is_host)
    finally:
        pipe.dovetail.undo()


def peak_of(plan: Generation) -> int:
    (device,) = (one for one in plan.peaks() if one.is_simulated)
    return max(plan.peak_of(call, device).total for call in plan.calls)


def peak_in_chunks(name: str, chunk: Any, params_backend: str | None = None, **size: int) -> int:
    pipe, call = compiled(name, chunk, params_backend=params_backend)
    try:
        return peak_of(planned(pipe, {**call, **size}))
    finally:
        pipe.dovetail.undo()


def chunked(plan: Generation) -> dict[str, int]:
    counts = {call.component: chunks_of(call.program) for call in plan.calls}
    return {name: count for name, count in counts.items() if count > 1}


@pytest.fixture(autouse=True)
def _let_go() -> Iterator[None]:
    yield
    gc.collect()


def painted(name: str, budget: int, chunk: int, **more: Any) -> Generation:
    """The plan of a pipeline in so many chunks, which is what was measured; the picture is the same but rounded."""
    expected = result(*EVERY_PIPELINE[name]())
    gc.collect()
    before = sim.stats(0).in_use
    pipe, call = compiled(name, chunk, budget, **more)  # which brings parameters that belong to no part, as PixArt's
    gc.collect()
    sim.reset_peak(0)
    plan = planned(pipe, call)
    found = result(pipe, call)
    for one in (program for programs in pipe.dovetail.programs.values() for program in programs):
        one.unload()
    pipe.dovetail.prepare(**of_call(call))  # so all weights that stay are there while each component is called again
    again = result(pipe, call)
    peak = sim.stats(0).peak - before
    pipe.dovetail.undo()
    assert peak == peak_of(plan) <= budget
    assert all(map(torch.equal, found, again))
    for one, other in zip(found, expected, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-3, atol=1e-3)
    return plan


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "rests"), [*((name, None) for name in NAMES), *((name, "cpu") for name in (*NAMES, "sd3"))]
)
def test_in_chunks_a_pipeline_fits_in_less_and_the_peak_is_the_planned_one(name: str, rests: str | None) -> None:
    whole, budget = (peak_in_chunks(name, chunk, params_backend=rests) for chunk in (None, 2))
    assert budget < whole
    assert set(chunked(painted(name, budget, 2, params_backend=rests)).values()) == {2}


@pytest.mark.parametrize("name", slow_but([], ["sd", "sdxl"]))
def test_a_refusal_names_chunks_and_with_them_it_fits(name: str) -> None:
    """On a host that has room for the VAE alone; else placements that change no bit would be named."""
    budget = peak_in_chunks(name, 4)
    rig = f"sim0=1GiB,cpu={9 * peak_on_the_host(name) // 4}B"
    pipe, call = compiled(name, None, budget, rig=rig)
    with pytest.raises(DoesNotFitError, match="wide parts in chunks") as caught:
        planned(pipe, call)
    assert not pipe.dovetail.programs
    pipe.dovetail.undo()
    line = re.search(r"wide parts in chunks \((--.*?): ", str(caught.value))
    assert line is not None
    words = shlex.split(line[1])
    options = {option[2:].replace("-", "_"): value for option, value in zip(words[::2], words[1::2], strict=True)}
    assert sorted(options["backend"].split(",")) == sorted(BACKEND.split(","))
    pipe, call = compiled(name, options.pop("chunk"), **options, rig=rig)
    assert peak_of(planned(pipe, call)) <= budget
    pipe.dovetail.undo()
