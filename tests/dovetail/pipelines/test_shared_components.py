"""Pipelines over the components of a compiled one: those made of it, and others that share some with it."""

from __future__ import annotations

import copy
import threading
from typing import Any

import diffusers
import pytest
import torch

import dovetail
from dovetail.compiler.errors import DoesNotFitError
from testbed.pipelines import tiny_pipelines

pytestmark = pytest.mark.usefixtures("clean_sims")

SPREAD = "unet=sim0&sim1,te=sim1,vae=sim0"
SMALL = {"num_inference_steps": 2, "output_type": "pt"}


def _pictured(pipe: Any, call: dict[str, Any]) -> torch.Tensor:
    call = {**SMALL, **call, "generator": torch.Generator().manual_seed(3)}
    return torch.as_tensor(pipe(**call)[0]).cpu()


def _from_picture(call: dict[str, Any]) -> dict[str, Any]:
    kept = {name: value for name, value in call.items() if name not in ("height", "width", "num_inference_steps")}
    return {**kept, "image": torch.rand(1, 3, 32, 32, generator=torch.Generator().manual_seed(1)), "strength": 1.0}


@pytest.fixture(scope="module")
def base() -> tuple[Any, dict[str, Any], torch.Tensor, torch.Tensor]:
    """A pipeline, its call, and in eager its picture and that of one made of it."""
    pipe, call = tiny_pipelines.sd()
    other = diffusers.StableDiffusionImg2ImgPipeline(**pipe.components)
    return pipe, call, _pictured(pipe, call), _pictured(other, _from_picture(call))


def _refiner(base: Any) -> tuple[Any, torch.Tensor]:
    """A pipeline with a denoiser of its own and the other components of another one, and in eager its picture."""
    torch.manual_seed(5)
    unet = copy.deepcopy(base[0].unet)
    for weight in unet.parameters():
        weight.data = torch.randn_like(weight) * 0.05
    pipe = diffusers.StableDiffusionImg2ImgPipeline(**{**base[0].components, "unet": unet})
    pipe.set_progress_bar_config(disable=True)
    return pipe, _pictured(pipe, _from_picture(base[1]))


@pytest.mark.slow
def test_a_pipeline_made_of_a_compiled_one_has_its_own_plan_page_and_check(base: Any) -> None:
    pipe, call, expected, expected_other = base
    dovetail.compile_pipeline(pipe, SPREAD, rig="sim0=64MiB,sim1=64MiB,cpu=8GiB")
    made = [
        diffusers.AutoPipelineForImage2Image.from_pipe(pipe),
        diffusers.StableDiffusionImg2ImgPipeline.from_pipe(pipe),
        diffusers.StableDiffusionImg2ImgPipeline(**pipe.components),
    ]
    other, given = made[0], {**SMALL, **_from_picture(call)}
    assert len({id(one.dovetail) for one in (pipe, *made)}) == 4
    titles = [one.title for one in other.dovetail.plan(**given).calls]
    assert "vae.encode" in titles
    assert "vae.encode" not in [one.title for one in pipe.dovetail.plan(**{**SMALL, **call}).calls]
    assert "unet" in other.dovetail.explain(**given)
    assert "StableDiffusionImg2ImgPipeline" in str(other.dovetail.show(**given))
    assert torch.equal(_pictured(other, _from_picture(call)), expected_other)
    assert torch.equal(_pictured(pipe, call), expected)
    large = {**given, "image": torch.rand(1, 3, 2048, 2048)}
    with pytest.raises(DoesNotFitError):
        other(**large)
    made[1].dovetail.undo()
    assert not hasattr(made[1], "dovetail")
    assert torch.equal(_pictured(pipe, call), expected)
    pipe.dovetail.undo()
    assert not any(hasattr(one, "dovetail") for one in (pipe, *made))
    assert torch.equal(_pictured(other, _from_picture(call)), expected_other)


@pytest.mark.slow
@pytest.mark.parametrize("first", ["base", "refiner"])
def test_two_pipelines_share_components_and_undoing_one_leaves_the_other_right(base: Any, first: str) -> None:
    pipe, call, expected, _ = base
    refiner, refined = _refiner(base)
    dovetail.compile_pipeline(pipe, SPREAD)
    dovetail.compile_pipeline(refiner, "unet=sim1&sim0,te=sim0,vae=sim1")
    assert refiner.dovetail.components["vae"] is pipe.dovetail.components["vae"]
    for _ in range(2):
        assert torch.equal(_pictured(pipe, call), expected)
        assert torch.equal(_pictured(refiner, _from_picture(call)), refined)
    undone, left = (pipe, refiner) if first == "base" else (refiner, pipe)
    undone.dovetail.undo()
    assert {one.device.type for one in undone.unet.parameters()} == {"cpu"}
    pictures = {id(pipe): (call, expected), id(refiner): (_from_picture(call), refined)}
    for one in (left, undone, left):
        assert torch.equal(_pictured(one, pictures[id(one)][0]), pictures[id(one)][1])
    left.dovetail.undo()
    for one in (left, undone):
        assert torch.equal(_pictured(one, pictures[id(one)][0]), pictures[id(one)][1])
    assert {one.device.type for one in pipe.vae.parameters()} == {"cpu"}


@pytest.mark.slow
def test_threads_over_two_pipelines_that_share_components_take_turns(base: Any) -> None:
    pipe, call, expected, _ = base
    refiner, refined = _refiner(base)
    dovetail.compile_pipeline(pipe, SPREAD)
    dovetail.compile_pipeline(refiner, SPREAD)
    found: list[Any] = []

    def work(one: Any, given: dict[str, Any], want: torch.Tensor) -> None:
        try:
            found.extend(torch.equal(_pictured(one, given), want) for _ in range(3))
        except Exception as error:
            found.append(error)

    threads = [
        threading.Thread(target=work, args=given, daemon=True)
        for given in ((pipe, call, expected), (refiner, _from_picture(call), refined))
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(120)
    refiner.dovetail.undo()
    pipe.dovetail.undo()
    assert found == [True] * 6


@pytest.mark.fifth
def test_a_pipeline_that_gets_another_component_is_no_longer_one_of_the_compiled(base: Any) -> None:
    pipe, call, expected, _ = base
    refiner, refined = _refiner(base)
    dovetail.compile_pipeline(pipe, SPREAD)
    other = diffusers.StableDiffusionImg2ImgPipeline.from_pipe(pipe)
    other.unet = refiner.unet
    assert not hasattr(other, "dovetail")
    assert torch.equal(_pictured(other, _from_picture(call)), refined)
    assert torch.equal(_pictured(pipe, call), expected)
    dovetail.compile_pipeline(other, "unet=sim0")
    assert list(other.dovetail.components["unet"].devices) == list(pipe.dovetail.components["vae"].devices)
    other.dovetail.undo()
    pipe.dovetail.undo()


@pytest.mark.fifth
def test_a_pipeline_made_of_one_whose_own_leader_is_gone_is_compiled_too(base: Any) -> None:
    pipe, call, expected, expected_other = base
    first = diffusers.StableDiffusionPipeline(**pipe.components)
    dovetail.compile_pipeline(first, SPREAD)
    second = diffusers.StableDiffusionImg2ImgPipeline.from_pipe(first)
    del first
    third = diffusers.StableDiffusionPipeline.from_pipe(second)
    assert third.dovetail.components["unet"].module is pipe.unet
    assert torch.equal(_pictured(third, call), expected)
    third.dovetail.undo()  # the second one uses the components still
    assert torch.equal(_pictured(second, _from_picture(call)), expected_other)
    assert second.dovetail.components
    second.dovetail.undo()
    assert {weight.device.type for weight in pipe.unet.parameters()} == {"cpu"}
    assert torch.equal(_pictured(pipe, call), expected)


@pytest.mark.fifth
@pytest.mark.parametrize("first", ["made of it", "compiled"])
def test_the_scheduler_of_a_pipeline_that_is_undone_before_the_one_it_was_made_of_comes_home(first: str) -> None:
    torch.manual_seed(0)
    blocks = {"down_block_types": ("DownBlock2D",), "up_block_types": ("UpBlock2D",), "block_out_channels": (8,)}
    unet = diffusers.UNet2DModel(sample_size=8, norm_num_groups=4, layers_per_block=1, add_attention=False, **blocks)
    pipe = diffusers.DDIMPipeline(unet.eval(), diffusers.DDIMScheduler())
    pipe.set_progress_bar_config(disable=True)

    def picture(one: Any) -> Any:
        generator = torch.Generator().manual_seed(1)
        return one(num_inference_steps=2, output_type="np", generator=generator, return_dict=False)[0]

    expected = picture(pipe)
    dovetail.compile_pipeline(pipe, "unet=sim0")
    other = diffusers.DDIMPipeline(pipe.unet, diffusers.DDIMScheduler())
    other.set_progress_bar_config(disable=True)
    assert (picture(pipe) == expected).all()
    assert (picture(other) == expected).all()
    undone, left = (other, pipe) if first == "made of it" else (pipe, other)
    undone.dovetail.undo()
    assert (picture(undone) == expected).all()
    if hasattr(left, "dovetail"):
        left.dovetail.undo()
    for one in (undone, left):
        kept = [value for value in vars(one.scheduler).values() if isinstance(value, torch.Tensor)]
        assert {value.device.type for value in kept} == {"cpu"}
        assert (picture(one) == expected).all()
