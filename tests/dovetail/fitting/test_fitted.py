"""Pipelines whose devices are left open: what is searched is what runs, and what was said is kept to."""

from __future__ import annotations

import gc
import re
from typing import Any

import pytest
import torch

from dovetail import demo, load_pipeline
from dovetail.compiler.devices.device import Device
from dovetail.compiler.errors import DoesNotFitError
from dovetail.compiler.frontend.fakes import has_numbers
from dovetail.compiler.spec.residency import Residency
from dovetail.draw.text.reasons import reason_for
from dovetail.pipelines.dryrun import DryPipeline
from dovetail.pipelines.loading.saved import open_pipeline
from dovetail.runtime.sim import device_module as sim
from testbed.pipelines import tiny_pipelines

CALL = {**demo.CALL_DEFAULTS, "num_inference_steps": 1, "output_type": "pt"}
SIM0, SIM1 = Device("sim"), Device("sim", 1)


def paint(pipe: Any) -> torch.Tensor:
    pipe.set_progress_bar_config(disable=True)
    return pipe("a red circle", generator=torch.Generator("cpu").manual_seed(0), **CALL).images.cpu()


def opened(rig: str, **request: Any) -> Any:
    return load_pipeline(demo.folder(), dtype=torch.float32, rig=rig, **request)


def searched(rig: str, **request: Any) -> DryPipeline:
    pipe, origins = open_pipeline(demo.folder(), dtype=torch.float32, needs_files=False)
    pipe.set_progress_bar_config(disable=True)
    dry = DryPipeline(pipe, {"rig": rig, **request}, origins=origins)
    dry("a red circle", **CALL)
    assert dry.decision is not None
    return dry


@pytest.fixture(scope="module")
def expected() -> torch.Tensor:
    return paint(load_pipeline(demo.folder(), dtype=torch.float32, backend="cpu"))


@pytest.mark.fifth
@pytest.mark.few(2)
@pytest.mark.parametrize("rig", ["sim0=1GiB,sim1=1GiB", "sim0=20MiB,sim1=16MiB,cpu=2500MiB", "sim0=9MiB,cpu=3GiB"])
def test_a_pipeline_without_a_backend_runs_where_the_search_says(rig: str, expected: torch.Tensor) -> None:
    pipe = opened(rig)
    assert torch.equal(paint(pipe), expected)
    decision = pipe.dovetail.decision
    assert decision is not None
    for placed in decision.plan.components:
        assert pipe.dovetail.components[placed.name].devices == placed.devices
        assert pipe.dovetail.components[placed.name].view.residency is placed.residency
    assert all(peak <= decision.budgets.devices[device] for device, peak in decision.plan.peak.items())


@pytest.mark.fifth
def test_on_the_host_alone_weights_rest_in_their_files_where_they_do_not_fit(expected: torch.Tensor) -> None:
    whole, tight = opened("cpu=1GiB"), opened("cpu=26MiB")  # of 27.4 MiB of weights
    assert torch.equal(paint(whole), expected)
    assert whole.dovetail.decision is None
    assert torch.equal(paint(tight), expected)
    assert Residency.DISK in {one.view.residency for one in tight.dovetail.components.values()}


@pytest.mark.fifth
def test_no_budget_is_exceeded_while_it_runs(expected: torch.Tensor) -> None:
    pipe = opened("sim0=64MiB,sim1=64MiB,cpu=3GiB", max_vram="sim0=14MiB,sim1=24MiB")
    gc.collect()  # the pipeline of the test before, whichever that was
    for device in (SIM0, SIM1):
        sim.reset_peak_memory_stats(device.torch)
    assert torch.equal(paint(pipe), expected)
    assert sim.max_memory_allocated(SIM0.torch) <= 14 * 2**20
    assert sim.max_memory_allocated(SIM1.torch) <= 24 * 2**20


@pytest.mark.fifth
def test_the_line_of_a_plan_asks_for_the_same(expected: torch.Tensor) -> None:
    rig = "sim0=20MiB,sim1=16MiB,cpu=2500MiB"
    planned = searched(rig)
    settings = planned.decision.plan.settings  # type: ignore[union-attr]
    options = {option.lstrip("-").replace("-", "_"): value for option, value in settings.items()}
    pipe = opened(rig, **options)
    assert torch.equal(paint(pipe), expected)
    for name, component in planned.components.items():
        assert pipe.dovetail.components[name].devices == component.devices


@pytest.mark.fifth
def test_the_second_call_searches_nothing() -> None:
    pipe = opened("sim0=1GiB,sim1=1GiB")
    paint(pipe)
    first = pipe.dovetail.decision
    paint(pipe)
    assert pipe.dovetail.decision is first


@pytest.mark.fifth
def test_what_was_said_of_one_component_is_kept_to() -> None:
    plan = searched("sim0=1GiB,sim1=1GiB,cpu=4GiB", backend="te=sim1", params_backend="te=cpu").decision.plan  # type: ignore[union-attr]
    encoders = [one for one in plan.components if one.role == "te"]
    assert {one.devices for one in encoders} == {(SIM1,)}
    assert {one.residency for one in encoders} == {Residency.HOST}
    assert {one.devices for one in plan.components if one.role != "te"} == {(SIM0,)}


@pytest.mark.fifth
def test_with_only_the_host_nothing_is_searched(expected: torch.Tensor) -> None:
    pipe = opened("cpu=8GiB")
    assert torch.equal(paint(pipe), expected)
    assert pipe.dovetail.decision is None


@pytest.mark.fifth
def test_a_refusal_comes_before_anything_is_read_and_names_what_fits() -> None:
    pipe = opened("sim0=1GiB,cpu=3GiB", backend="diffusion=sim0", max_vram="sim0=1MiB")
    with pytest.raises(DoesNotFitError) as caught:
        paint(pipe)
    message = str(caught.value)
    assert "transformer needs at least" in message
    assert "max_vram='sim0=1MiB' (--max-vram sim0=1MiB) leaves 1.0 MiB" in message
    assert "what fits, best first:\n  " in message
    assert "(--backend" in message
    assert sim.memory_allocated(SIM0.torch) == 0


@pytest.mark.slow
def test_the_least_of_a_refusal_is_accepted_and_little_less_is_refused() -> None:
    def within(device: str, kib: float) -> DryPipeline:
        return searched(f"{device}=64MiB,cpu=3GiB", backend=device, max_vram=f"{device}={kib:.0f}KiB")

    for device, largest in (("cuda0", "vae"), ("sim0", "transformer")):
        with pytest.raises(DoesNotFitError) as refused:
            within(device, 1024)
        said = re.search(rf"{largest} needs at least ([0-9.]+) MiB on {device}", str(refused.value))
        assert said is not None, str(refused.value)
        least = 1024 * float(said[1])
        assert within(device, 1.15 * least).decision is not None
        with pytest.raises(DoesNotFitError, match="needs at least"):
            within(device, 0.85 * least)


@pytest.mark.slow
def test_after_a_refusal_another_call_is_planned_anew() -> None:
    pipe = opened("sim0=1MiB,cpu=3GiB", backend="diffusion=sim0")
    for _ in range(2):
        with pytest.raises(DoesNotFitError):
            paint(pipe)


@pytest.mark.slow
def test_a_plan_for_another_machine_reads_nothing() -> None:
    dry = searched("cuda0=64MiB,cuda1=64MiB,cpu=16GiB")
    assert dry.decision is not None
    assert dry.decision.plan.line == "--backend cuda0"
    assert any(note.startswith("cuda1 is not used") for note in dry.decision.explained().notes)
    assert not any(has_numbers(one) for part in dry.components.values() for one in part.module.parameters())


@pytest.mark.slow
def test_what_the_search_knows_nothing_of_is_found_room_for_though_it_exceeds_by_little() -> None:
    """While the host decodes, the pipeline's own tensors exceed the card by 6 KB: some megabytes more must go."""
    pipe, origins = open_pipeline(demo.folder(), dtype=torch.float32, needs_files=False)
    asked = {
        "backend": "text_encoder_2=cpu,diffusion=cuda0,vae=cpu", "params_backend": "text_encoder=cpu",
        "rig": "cuda0=35.4MiB,cpu=16GiB", "chunk": "transformer=2",
    }  # fmt: skip
    dry = DryPipeline(pipe, asked, origins=origins, vae_tiling=64)
    plan = dry("a red circle", **{**CALL, "height": 256, "width": 256})
    assert "diffusion=cpu" in dry.account(plan).settings["--params-backend"]


@pytest.mark.slow
@pytest.mark.parametrize(
    "how", [{"split_mode": "diffusion=row"}, {"tensor_split": "diffusion=3:1"}], ids=["rows", "shares"]
)
def test_what_is_split_as_was_asked_is_streamed_where_the_rest_is_left_open(how: dict[str, str]) -> None:
    """Its weights do not fit, wherever the other components are; with those named it was accepted."""
    pipe, origins = open_pipeline(demo.folder(), dtype=torch.float32, needs_files=False)
    asked = {"backend": "diffusion=sim0&sim1", "rig": "sim0=4MiB,sim1=4MiB,cpu=16GiB", **how}
    dry = DryPipeline(pipe, asked, origins=origins)
    settings = dry.account(dry("a red circle", **CALL)).settings
    assert "diffusion=cpu" in settings["--params-backend"]
    assert settings.get("--split-mode", "") == how.get("split_mode", "")


@pytest.mark.fifth
def test_devices_that_were_named_and_get_nothing_have_no_share() -> None:
    """Its weights fit on no device alone and are streamed; there are more devices than blocks."""
    pipe, call = tiny_pipelines.flux()
    of_one = sum(weight.nbytes for weight in pipe.transformer.parameters()) // 2
    rig = ",".join([*(f"sim{index}={of_one}B" for index in range(6)), "cpu=4GiB"])
    names = [f"sim{index}" for index in range(6)]
    dry = DryPipeline(pipe, {"backend": f"diffusion={'&'.join(names)},te=sim0,vae=sim0", "rig": rig})
    account = dry.account(dry(**call))
    (part,) = [one for one in account.parts if one.title == "transformer"]
    working = [row.device.name for row in part.rows]
    idle = [name for name in names if name not in working]
    assert idle
    told = reason_for(account, part)
    assert f"over {' & '.join(working)}, and nothing of it on {' & '.join(idle)}" in told


@pytest.mark.slow
@pytest.mark.few(1)
@pytest.mark.parametrize(
    "asked",
    [{"split_mode": "row"}, {"split_mode": "diffusion=row"}, {"params_backend": "device"}],
    ids=["rows", "rows of one", "weights that stay"],
)
def test_what_was_said_of_all_is_in_the_line_that_asks_for_the_same(asked: dict[str, str]) -> None:
    pipe, call = tiny_pipelines.wide_flux()
    nbytes = sum(weight.nbytes for weight in pipe.transformer.parameters())
    rig = f"sim0={2 * nbytes // 3}B,sim1={2 * nbytes // 3}B,cpu=4GiB"
    texts, settings = [], dict(asked)
    for _ in range(2):
        dry = DryPipeline(pipe, {"rig": rig, **settings})
        plan = dry(**call)
        texts.append({call.title: (call.program.is_sliced, str(call.program)) for call in plan.calls})
        said = dry.account(plan).settings
        settings = {option[2:].replace("-", "_"): value for option, value in said.items()}
        dry.undo()
    assert settings.keys() >= asked.keys()
    assert texts[0] == texts[1]
    is_sliced, _ = texts[0]["transformer"]
    assert is_sliced == ("split_mode" in asked)
