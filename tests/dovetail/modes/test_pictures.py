"""Tiny pipelines whose denoiser all devices compute together: near eager, in the bytes that were planned."""

from __future__ import annotations

import gc
import logging
from pathlib import Path
from typing import Any

import pytest
import torch

import dovetail
from dovetail.compiler.ir.program import Program
from dovetail.compiler.ir.schedule import Lifetime, Load
from dovetail.compiler.states.parts import crossing_bytes
from dovetail.passes.simulate.memory import simulate
from dovetail.passes.states.states import split_mode_of
from dovetail.runtime import sim
from testbed.pipelines.tiny_pipelines import flux, paint, sd, wan
from tests.cases import drawn, slow_but

PIPELINES = {"flux": flux, "sd": sd, "wan": wan}
SHARES = ("1:1", "3:2", "5:3:2")
NEAR = 1e-5
"""How far a picture may be off, by the root of the mean square, as a part of eager's."""

CELLS = [
    (name, mode, shares)
    for name in PIPELINES
    for mode in ("tensor", "sequence", *(["batch"] if name == "sd" else []))
    for shares in SHARES
]
QUICK = (("flux", "sequence", "3:2"), ("sd", "batch", "1:1"))


def together(pipe: Any, mode: str, shares: str, **more: Any) -> Any:
    """A pipeline whose denoiser is split over as many simulated devices as there are shares."""
    devices = "&".join(f"sim{index}" for index in range(shares.count(":") + 1))
    return dovetail.compile_pipeline(
        pipe,
        backend={"diffusion": devices, "te": "sim0", "vae": "sim0"},
        split_mode={"diffusion": mode},
        tensor_split={"diffusion": shares},
        **more,
    )


def off(found: torch.Tensor, expected: torch.Tensor) -> float:
    """The root of the mean square of what is off, as a part of that of what is expected."""
    return float((found.cpu().double() - expected.double()).norm() / expected.double().norm())


def programs_of(pipe: Any) -> list[Program]:
    names = ("transformer", "unet")
    return [one.program for name, made in pipe.dovetail.programs.items() if name in names for one in made]


@pytest.fixture(autouse=True)
def _sims() -> None:
    gc.collect()
    sim.enable()


@pytest.mark.fifth
@pytest.mark.few(1)
@pytest.mark.parametrize(("name", "mode", "shares"), slow_but(QUICK, [*QUICK, *drawn(CELLS, 6)]))
def test_a_picture_is_near_eager_in_the_bytes_that_were_planned(name: str, mode: str, shares: str) -> None:
    made, call = PIPELINES[name]()
    expected = paint(made, call)
    count = shares.count(":") + 1
    before = [sim.stats(index).in_use for index in range(count)]
    pipe = together(made, mode, shares)
    with pipe.dovetail as handle:
        planned = handle.plan(**call)
        assert off(paint(pipe, call), expected) < NEAR
        gc.collect()
        for index in range(count):
            sim.reset_peak(index)
        assert off(paint(pipe, call), expected) < NEAR
        peaks = {device: peak.total for device, peak in planned.peaks().items() if device.is_simulated}
        assert {device: sim.stats(device.index).peak - before[device.index] for device in peaks} == peaks
        (program,) = programs_of(pipe)
        assert split_mode_of(program) == mode
        assert len(peaks) == count
    for module in made.components.values():
        if isinstance(module, torch.nn.Module):
            assert {one.device.type for one in module.parameters()} <= {"cpu"}


@pytest.mark.fifth
@pytest.mark.parametrize("mode", ["batch+tensor", "batch+sequence", "tensor"])
def test_what_was_computed_in_groups_and_is_then_placed_by_layers_is_counted(mode: str) -> None:
    """A call with guidance has two pictures; one without has one, which no groups can share."""
    made, call = sd()
    before = [sim.stats(index).in_use for index in range(4)]
    pipe = together(made, mode, "1:1:1:1")
    alone = {**call, "guidance_scale": 1.0}
    with pipe.dovetail as handle:
        paint(pipe, call)
        paint(pipe, alone)
        for asked in (call, alone):
            peaks = {one.index: peak.total for one, peak in handle.plan(**asked).peaks().items() if one.is_simulated}
            gc.collect()
            for index in range(4):
                sim.reset_peak(index)
            paint(pipe, asked)
            assert {index: sim.stats(index).peak - before[index] for index in range(4)} == peaks
        by_layers = [program for program in programs_of(pipe) if split_mode_of(program) == "layer"]
    if mode == "batch+tensor":
        (program,) = by_layers
        assert len(set(program.home.values())) == 4, (
            "weights that each device had whole do not draw all others after them"
        )


@pytest.mark.slow
@pytest.mark.few(1)
@pytest.mark.parametrize("mode", ["tensor", "sequence"])
def test_a_call_sends_what_its_program_says(mode: str) -> None:
    made, call = flux()
    pipe = together(made, mode, "3:2")
    with pipe.dovetail:
        paint(pipe, call)
        (program,) = programs_of(pipe)
        module = pipe.transformer
        caught: list[tuple[tuple[Any, ...], dict[str, Any]]] = []
        hook = module.register_forward_pre_hook(lambda _, args, kwargs: caught.append((args, kwargs)), with_kwargs=True)
        paint(pipe, call)
        hook.remove()
        args, kwargs = caught[0]
        came = sum(sim.stats(index).bytes_in for index in range(2))
        with torch.no_grad():
            module(*args, **kwargs)
        came = sum(sim.stats(index).bytes_in for index in range(2)) - came
        inputs = [
            one for one in (*args, *kwargs.values()) if isinstance(one, torch.Tensor) and one.device.type == "cpu"
        ]
        assert came - sum(one.nbytes for one in inputs) == crossing_bytes(program)
        assert [usage.total > 0 for usage in simulate(program).values()] == [True, True]


@pytest.mark.slow
def test_a_call_of_one_picture_has_no_batch_and_is_placed_by_layers(caplog: pytest.LogCaptureFixture) -> None:
    made, call = flux()
    expected = paint(made, call)
    pipe = together(made, "batch", "1:1")
    with caplog.at_level(logging.WARNING), pipe.dovetail:
        assert torch.equal(paint(pipe, call).cpu(), expected)
        (program,) = programs_of(pipe)
        assert split_mode_of(program) == "layer"


@pytest.mark.slow
@pytest.mark.parametrize("mode", ["tensor", "sequence"])
def test_weights_that_come_from_host_memory_take_what_was_planned(mode: str) -> None:
    made, call = flux()
    expected = paint(made, call)
    before = [sim.stats(index).in_use for index in range(2)]
    pipe = together(made, mode, "3:2", params_backend={"diffusion": "cpu"}, max_vram="sim0=1,sim1=0.0004")
    with pipe.dovetail as handle:
        planned = handle.plan(**call)
        peaks = {device: peak.total for device, peak in planned.peaks().items() if device.is_simulated}
        assert off(paint(pipe, call), expected) < NEAR
        gc.collect()
        for index in range(2):
            sim.reset_peak(index)
        assert off(paint(pipe, call), expected) < NEAR
        assert {device: sim.stats(device.index).peak - before[device.index] for device in peaks} == peaks
        (program,) = programs_of(pipe)
        assert split_mode_of(program) == mode
        assert program.works_at_once
        lifetimes = {one.lifetime for one in program.schedule or () if isinstance(one, Load)}
        assert lifetimes == {Lifetime.PHASE, *([Lifetime.STAGE] if mode == "sequence" else [])}
        assert max(peaks.values()) < 2**30


@pytest.mark.slow
@pytest.mark.parametrize("mode", slow_but(["tensor"], ["tensor", "sequence"]))
def test_pictures_of_two_sizes_take_what_was_planned_in_turn(mode: str) -> None:
    made, small = flux()
    calls = [small, {**small, "height": 32, "width": 32}]
    expected = [paint(made, call) for call in calls]
    gc.collect()
    before = [sim.stats(index).in_use for index in range(2)]
    pipe = together(made, mode, "3:2")
    with pipe.dovetail as handle:
        for call, right in [*zip(calls, expected, strict=True)] * 2:
            planned = handle.plan(**call)
            paint(pipe, call)
            gc.collect()
            for index in range(2):
                sim.reset_peak(index)
            assert off(paint(pipe, call), right) < NEAR
            peaks = {device: peak.total for device, peak in planned.peaks().items() if device.is_simulated}
            assert {device: sim.stats(device.index).peak - before[device.index] for device in peaks} == peaks
        assert [split_mode_of(one) for one in programs_of(pipe)] == [mode, mode]


@pytest.mark.slow
@pytest.mark.parametrize("rest", ["disk", "cpu"])
def test_halves_of_guidance_are_split_by_batch_while_weights_come(rest: str, tmp_path: Path) -> None:
    made, call = sd()
    expected = paint(made, call)
    made.save_pretrained(tmp_path)
    devices = "diffusion=sim0&sim1,te=sim0,vae=sim0"
    resting = f"diffusion={rest}"
    pipe = dovetail.load_pipeline(tmp_path, backend=devices, split_mode="diffusion=batch", params_backend=resting)
    with pipe.dovetail:
        assert off(paint(pipe, call), expected) < NEAR
        (program,) = programs_of(pipe)
        assert split_mode_of(program) == "batch"


@pytest.mark.slow
@pytest.mark.parametrize("mode", slow_but(["tensor"], ["tensor", "sequence"]))
def test_a_device_with_little_memory_gets_its_weights_as_they_are_read(mode: str) -> None:
    made, call = flux()
    expected = paint(made, call)
    devices = "diffusion=sim0&sim1,te=sim0,vae=sim0"
    pipe = dovetail.compile_pipeline(made, devices, split_mode=f"diffusion={mode}", rig="sim0=1GiB,sim1=60KiB,cpu=4GiB")
    with pipe.dovetail as handle:
        peaks = {str(device): peak.total for device, peak in handle.plan(**call).peaks().items()}
        assert peaks["sim1"] <= 60 * 2**10
        assert off(paint(pipe, call), expected) < NEAR
        (program,) = programs_of(pipe)
        assert split_mode_of(program) == mode


@pytest.mark.fifth
@pytest.mark.parametrize("name", slow_but(["sd"], PIPELINES))
def test_a_picture_is_decoded_in_areas(name: str) -> None:
    made, call = PIPELINES[name]()
    expected = paint(made, call)
    before = [sim.stats(index).in_use for index in range(2)]
    pipe = dovetail.compile_pipeline(made, "te=sim0,diffusion=sim0,vae=sim0&sim1", split_mode="vae=spatial")
    with pipe.dovetail as handle:
        planned = handle.plan(**call)
        assert off(paint(pipe, call), expected) < NEAR
        gc.collect()
        for index in range(2):
            sim.reset_peak(index)
        assert off(paint(pipe, call), expected) < NEAR
        peaks = {device: peak.total for device, peak in planned.peaks().items() if device.is_simulated}
        assert {device: sim.stats(device.index).peak - before[device.index] for device in peaks} == peaks
        assert [split_mode_of(one.program) for one in handle.programs["vae"]] == ["spatial"]


@pytest.mark.slow
def test_another_size_may_cut_a_weight_otherwise() -> None:
    made, call = sd()
    wide = {**call, "height": 24, "width": 32}
    expected = [paint(made, call), paint(made, wide)]
    pipe = together(made, "tensor", "3:2")
    with pipe.dovetail:
        for one, found in zip((call, wide, call), (*expected, expected[0]), strict=True):
            assert off(paint(pipe, one), found) < NEAR
    assert torch.equal(paint(made, call), expected[0])


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "mode", "shares"),
    slow_but(
        [("sd", "tensor", "1:5:1"), ("wan", "tensor", "1:1")],
        [("sd", "tensor", "1:5:1"), ("wan", "tensor", "1:1"), ("flux", "tensor", "0:1"), ("flux", "sequence", "0:1:1")],
    ),
)
def test_a_main_device_that_reads_little_holds_no_more_than_that(name: str, mode: str, shares: str) -> None:
    made, call = PIPELINES[name]()
    count = shares.count(":") + 1
    before = [sim.stats(index).in_use for index in range(count)]
    pipe = together(made, mode, shares)
    with pipe.dovetail as handle:
        planned = handle.plan(**call)
        for _ in range(2):
            gc.collect()
            for index in range(count):
                sim.reset_peak(index)
            paint(pipe, call)
        peaks = {device: peak.total for device, peak in planned.peaks().items() if device.is_simulated}
        assert {device: sim.stats(device.index).peak - before[device.index] for device in peaks} == peaks
