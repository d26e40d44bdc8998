"""Whole pipelines on one device that is granted a part of their weights' bytes: the same picture, in planned bytes."""

from __future__ import annotations

import gc
from typing import Any

import pytest
import torch

import dovetail
from dovetail.compiler.errors import DoesNotFitError
from dovetail.components.compiled import CompiledModule
from dovetail.planning.generation import Generation
from dovetail.runtime import sim
from dovetail.runtime.store.origin import HOST
from testbed.pipelines.every_pipeline import EVERY_PIPELINE, result
from tests.cases import slow_but

pytestmark = pytest.mark.usefixtures("clean_sims")

NAMES = ("flux", "sd", "sdxl", "pixart", "sd_controlnet", "kandinsky", "flux_controlnet", "sdxl_controlnet", "sd_pag",
         "lcm", "sdxl_pag", "sd_controlnet_pag")  # fmt: skip
ALL = ("sd3", "wan", "chroma")
SAMPLE = ("flux", (0.7, 0.3))
CASES = [SAMPLE, *((name, (1.0, 0.7, 0.5, 0.3)) for name in (*NAMES, *ALL))]
"""Names, and the parts of their weights that are granted; with all of it they stay on the device, beside their values.

Of one name all parts are in one test, so that it is traced once.
"""


def expected_peak(plan: Generation) -> int:
    """The peak on the simulated device that is to be measured."""
    (device,) = (one for one in plan.peaks() if one.is_simulated)
    return max(plan.peak_of(call, device).total for call in plan.calls)


def bytes_of(pipe: Any) -> int:
    modules = (one for one in pipe.components.values() if isinstance(one, torch.nn.Module))
    return sum(parameter.nbytes for module in modules for parameter in module.parameters())


def resting(pipe: Any) -> int:
    """The bytes in host memory of all weights that programs read, and of copies of them that are kept there."""
    read = {
        id(one): one
        for component in pipe.dovetail.components.values()
        for call in component.calls
        for program in call.programs.values()
        if isinstance(program, CompiledModule)
        for _, one in component.assigned.held(call.module, program.program)
    }
    held = (tensor for one in read.values() for tensor in (one.tensor, *one.parts.values(), *one.staged.values()))
    return sum(tensor.nbytes for tensor in held if tensor.device == HOST)


@pytest.mark.fifth
@pytest.mark.parametrize(("name", "parts"), slow_but([SAMPLE], CASES))
def test_a_pipeline_paints_the_same_picture_within_a_part_of_its_weights_and_holds_what_was_planned(
    name: str, parts: tuple[float, ...]
) -> None:
    pipe, call = EVERY_PIPELINE[name]()
    expected = result(pipe, call)
    for part in parts:
        try:
            paints_within(part, pipe, call, expected)
        except Exception as error:
            raise AssertionError(f"{name} with {part} of its weights") from error


def paints_within(part: float, pipe: Any, call: dict[str, Any], expected: list[torch.Tensor]) -> None:
    """The same picture, the planned peak on the device, and in host memory the planned bytes of weights that rest."""
    budget = int(part * bytes_of(pipe)) if part < 1 else 2**30
    gc.collect()
    before = sim.stats(0).in_use
    sim.reset_peak(0)
    rests = "cpu" if part < 1 else None
    dovetail.compile_pipeline(pipe, "sim0", params_backend=rests, max_vram=f"sim0={budget}B", rig="sim0=1GiB")
    given = {"output_type": "pt", "return_dict": False, **call, "generator": torch.Generator().manual_seed(0)}
    plan = pipe.dovetail.plan(**given)
    found = result(pipe, call)
    on_host = resting(pipe)
    for one in (program for programs in pipe.dovetail.programs.values() for program in programs):
        one.unload()
    pipe.dovetail.prepare(
        **given
    )  # so all weights that stay are there while each component is called for the first time
    again = result(pipe, call)
    peak = sim.stats(0).peak - before
    assert all(map(torch.equal, found, expected))
    assert all(map(torch.equal, again, expected))
    assert peak <= budget
    assert plan is not None
    assert peak == expected_peak(plan)
    assert on_host == sum(plan.resident[pipe.dovetail.rig.host].values())
    assert bool(on_host) == (part < 1)
    pipe.dovetail.undo()


@pytest.mark.slow
def test_what_a_pipeline_keeps_for_what_is_called_at_the_end_of_a_step_is_planned() -> None:
    pipe, call = EVERY_PIPELINE["sdxl"]()
    pipe.set_progress_bar_config(disable=True)
    dovetail.compile_pipeline(pipe, "sim0", rig="sim0=1GiB")
    given = {"output_type": "pt", "return_dict": False, **call, "height": 64, "width": 64}
    pipe.dovetail.prepare(**given)
    told = {**given, "callback_on_step_end": lambda _pipe, _step, _time, state: state}
    plans, measured = [], []
    for arguments in (given, told):
        plans.append(pipe.dovetail.plan(**arguments))
        pipe(**arguments)  # so that nothing is made for the first time
        gc.collect()
        sim.reset_peak(0)
        pipe(**arguments)
        measured.append(sim.stats(0).peak)
    assert [expected_peak(plan) for plan in plans if plan] == measured
    pipe.dovetail.undo()


@pytest.mark.slow
def test_a_budget_that_cannot_be_met_is_refused_before_anything_is_brought() -> None:
    pipe, call = EVERY_PIPELINE["flux"]()
    budget = bytes_of(pipe) // 20
    dovetail.compile_pipeline(pipe, "sim0", params_backend="cpu", max_vram=f"sim0={budget}B", rig="sim0=1GiB")
    with pytest.raises(DoesNotFitError, match="on sim0"):
        result(pipe, call)
    assert not pipe.dovetail.programs
    gc.collect()
    assert sim.stats(0).in_use == 0
    pipe.dovetail.undo()


@pytest.mark.slow
@pytest.mark.parametrize("part", [0.5])
def test_a_call_that_comes_in_other_strides_than_were_planned_keeps_the_budget(part: float) -> None:
    pipe, call = EVERY_PIPELINE["sd_img2img"]()
    budget = int(part * bytes_of(pipe))
    gc.collect()
    before = sim.stats(0).in_use
    sim.reset_peak(0)
    dovetail.compile_pipeline(pipe, "sim0", params_backend="cpu", max_vram=f"sim0={budget}B", rig="sim0=1GiB")
    result(pipe, call)
    assert sim.stats(0).peak - before <= budget
    pipe.dovetail.undo()


@pytest.mark.fifth
def test_preparing_keeps_the_budget_though_each_component_would_fill_it() -> None:
    pipe, call = EVERY_PIPELINE["flux"]()
    budget = int(0.3 * bytes_of(pipe))
    dovetail.compile_pipeline(pipe, "sim0", params_backend="cpu", max_vram=f"sim0={budget}B", rig="sim0=1GiB")
    gc.collect()
    before = sim.stats(0).in_use
    sim.reset_peak(0)
    pipe.dovetail.prepare(**call, output_type="pt", generator=torch.Generator())
    assert sim.stats(0).peak - before <= budget
    pipe.dovetail.undo()
