"""Scripts as users of diffusers write them, with the line that loads the pipeline changed: no bit is another."""

from __future__ import annotations

import copy
from collections.abc import Callable
from pathlib import Path
from typing import Any

import diffusers
import pytest
import torch
from PIL import Image

import dovetail
from dovetail.runtime import sim
from testbed.pipelines import tiny_pipelines
from tests.cases import slow_but

from ..lora.tiny_loras import save_lora

Load = Callable[..., Any]
SPREAD = "diffusion=sim0&sim1,te=sim1,vae=sim0,controlnet=sim1"
SMALL = {"height": 16, "width": 16, "num_inference_steps": 2, "output_type": "pt"}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A pipeline, a ControlNet and a LoRA."""
    place = tmp_path_factory.mktemp("scripts")
    pipe, _ = tiny_pipelines.sd_controlnet()
    pipe.controlnet.save_pretrained(place / "controlnet")
    parts = {name: part for name, part in pipe.components.items() if name != "controlnet"}
    pipe = diffusers.StableDiffusionPipeline(**parts)
    pipe.save_pretrained(place / "sd")
    save_lora(copy.deepcopy(pipe), place / "lora", 7)
    return place


def seeded(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def exchanges_the_scheduler(load: Load, folder: Path) -> list[torch.Tensor]:
    pipe = load(folder / "sd", torch_dtype=torch.float32, safety_checker=None)
    pipe.set_progress_bar_config(disable=True)
    pipe.scheduler = diffusers.EulerAncestralDiscreteScheduler.from_config(pipe.scheduler.config)
    first = pipe("a cat", generator=seeded(), **SMALL).images
    pipe.scheduler = diffusers.DPMSolverMultistepScheduler.from_config(pipe.scheduler.config, use_karras_sigmas=True)
    steps: list[int] = []

    def step(pipe: Any, index: int, time: Any, values: dict[str, Any]) -> dict[str, Any]:
        steps.append(index)
        return {**values, "latents": values["latents"] * 1.5} if index == 0 else values

    second = pipe("a cat", generator=seeded(), callback_on_step_end=step, **SMALL).images
    assert steps == [0, 1]
    return [first, second]


def paints_with_a_lora(load: Load, folder: Path) -> list[torch.Tensor]:
    pipe = load(folder / "sd", torch_dtype=torch.float32)
    pipe.set_progress_bar_config(disable=True)
    pipe.load_lora_weights(folder / "lora", adapter_name="style")
    first = pipe("a cat", generator=seeded(), **SMALL).images
    pipe.set_adapters(["style"], adapter_weights=[0.5])
    second = pipe("a cat", generator=seeded(), **SMALL).images
    pipe.unload_lora_weights()
    return [first, second, pipe("a cat", generator=seeded(), **SMALL).images]


def goes_on_from_a_picture(load: Load, folder: Path) -> list[torch.Tensor]:
    pipe = load(folder / "sd", torch_dtype=torch.float32)
    pipe.set_progress_bar_config(disable=True)
    first = pipe("a cat", generator=seeded(), **SMALL).images
    other = diffusers.AutoPipelineForImage2Image.from_pipe(pipe)
    other.set_progress_bar_config(disable=True)
    call = {"num_inference_steps": 4, "strength": 0.5, "output_type": "pt"}
    return [first, other("a dog", image=first.cpu(), generator=seeded(1), **call).images]


def follows_a_control_net(load: Load, folder: Path) -> list[torch.Tensor]:
    controlnet = diffusers.ControlNetModel.from_pretrained(folder / "controlnet", torch_dtype=torch.float32)
    given = {"controlnet": controlnet} | ({"pipeline_class": CONTROLLED} if load is compiled else {})
    pipe = load(folder / "sd", **given, torch_dtype=torch.float32)
    pipe.set_progress_bar_config(disable=True)
    edges = Image.new("RGB", (16, 16), (90, 20, 200))
    call = {"image": edges, "controlnet_conditioning_scale": 0.7, **SMALL}
    return [pipe("a cat", generator=seeded(), **call).images]


CONTROLLED = diffusers.StableDiffusionControlNetPipeline


def eager(source: Path, **options: Any) -> Any:
    cls = CONTROLLED if "controlnet" in options else diffusers.StableDiffusionPipeline
    return cls.from_pretrained(source, **options)


def compiled(source: Path, **options: Any) -> Any:
    return dovetail.load_pipeline(source, SPREAD, **options)


@pytest.mark.fifth
@pytest.mark.parametrize(
    "script",
    slow_but(
        {exchanges_the_scheduler},
        [exchanges_the_scheduler, paints_with_a_lora, goes_on_from_a_picture, follows_a_control_net],
    ),
)
def test_a_script_of_diffusers_paints_the_same_with_one_line_changed(
    script: Callable[[Load, Path], list[torch.Tensor]], folder: Path
) -> None:
    expected = script(eager, folder)
    found = script(compiled, folder)
    assert len(found) == len(expected)
    for one, other in zip(found, expected, strict=True):
        assert torch.equal(one.cpu(), other)


@pytest.mark.fifth
@pytest.mark.parametrize("device", ["sim", "sim:0"])
def test_a_script_for_a_device_is_rehearsed_on_a_simulated_one_by_a_change_of_the_word(
    device: str, folder: Path
) -> None:
    sim.enable()
    pictures = []
    for load in (eager, compiled):
        pipe = load(folder / "sd", torch_dtype=torch.float32)
        pipe.set_progress_bar_config(disable=True)
        pipe = pipe.to(device)
        generator = torch.Generator(device=device).manual_seed(0)
        latents = torch.randn(1, 4, 8, 8, device=device, generator=generator)
        pictures.append(pipe("a cat", generator=torch.Generator(device).manual_seed(1), **SMALL).images)
        pictures.append(pipe("a cat", latents=latents, **SMALL).images)
    first, second = pictures[:2], pictures[2:]
    assert all(one.device == torch.device("sim:0") for one in pictures)
    assert all(torch.equal(one.cpu(), other.cpu()) for one, other in zip(first, second, strict=True))
