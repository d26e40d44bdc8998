"""What a compiled pipeline is, components of two pipelines, and what is left when compiling fails half-way."""

from __future__ import annotations

import copy
import pickle
from pathlib import Path
from typing import Any

import diffusers
import pytest
import torch
from torch import nn

import dovetail
from dovetail.compiler.errors import DoesNotFitError, UsageError
from dovetail.compiler.frontend.fakes import has_numbers
from dovetail.components.component import Component
from dovetail.conventions.libraries import HOOK
from dovetail.conventions.replacements import Replacement
from testbed.pipelines import tiny_pipelines
from testbed.pipelines.tiny_pipelines import paint

from ..components.small_pipeline import WIDTH, Model, Pipeline

SPREAD = "diffusion=sim0&sim1,te=sim1,vae=sim0"


def _ours(module: nn.Module) -> list[str]:
    return [name for one in module.modules() for name, value in vars(one).items() if isinstance(value, Replacement)]


@pytest.mark.fifth
def test_a_compiled_pipeline_is_the_pipeline_itself(tmp_path: Path) -> None:
    pipe, call = tiny_pipelines.sd()
    expected, parts, config = paint(pipe, call), pipe.components, dict(pipe.config)
    assert dovetail.compile_pipeline(pipe, SPREAD) is pipe
    assert isinstance(pipe, diffusers.StableDiffusionPipeline)
    assert type(pipe).__name__ == "StableDiffusionPipeline"
    assert pipe.components == parts
    assert dict(pipe.config) == config
    other = diffusers.AutoPipelineForImage2Image.from_pipe(pipe)
    assert isinstance(other, diffusers.StableDiffusionImg2ImgPipeline)
    assert type(other).__name__ == "StableDiffusionImg2ImgPipeline"
    pipe.save_pretrained(tmp_path)
    loaded = dovetail.load_pipeline(tmp_path, SPREAD)
    assert isinstance(loaded, diffusers.StableDiffusionPipeline)
    for one in (pipe, loaded):
        one.scheduler = diffusers.EulerDiscreteScheduler.from_config(one.scheduler.config)
        assert type(one.scheduler) is diffusers.EulerDiscreteScheduler
        one.scheduler = diffusers.DDIMScheduler.from_config(parts["scheduler"].config)
        assert torch.equal(paint(one, call).cpu(), expected)


def test_what_is_dovetails_is_in_one_place_until_it_is_undone() -> None:
    pipe, call = tiny_pipelines.sd()
    expected = paint(pipe, call)
    with dovetail.compile_pipeline(pipe, SPREAD).dovetail as ours:
        assert pipe.dovetail is ours
        assert ours.pipe is pipe
        assert ours.components.keys() == {"vae", "text_encoder", "unet"}
        assert "unet (diffusion): sim0 & sim1, 0 programs" in str(ours)
        assert "<td>unet</td><td>diffusion</td><td>sim0 &amp; sim1</td>" in ours._repr_html_()
        with pytest.raises(UsageError, match="copy the pipeline"):
            copy.deepcopy(ours)
    assert type(pipe) is diffusers.StableDiffusionPipeline
    assert not hasattr(pipe, "dovetail")
    assert torch.equal(paint(pipe, call), expected)
    for use in (ours.plan, ours.prepare, lambda **call: ours.go_on({}, **call)):
        with pytest.raises(UsageError, match=r"^this StableDiffusionPipeline was undone: compile it again$"):
            use(**call)
    ours.undo()
    dovetail.compile_pipeline(pipe, "sim0")
    ours.undo()
    assert pipe.dovetail.components


def test_what_was_kept_of_a_pipeline_that_is_gone_says_so() -> None:
    pipe, call = tiny_pipelines.sd()
    unet, ours = pipe.unet, dovetail.compile_pipeline(pipe, SPREAD).dovetail
    del pipe
    assert list(ours.components) == ["unet"]
    assert "unet (diffusion)" in str(ours)
    for use in (ours.plan, ours.prepare, lambda **call: ours.go_on({}, **call)):
        with pytest.raises(UsageError, match=r"^the StableDiffusionPipeline is gone: keep what"):
            use(**call)
    ours.release()
    ours.refresh()
    ours.undo()
    assert _ours(unet) == []
    assert ours.components == {}


def test_a_component_of_two_pipelines_stays_where_the_first_placed_it_until_both_are_undone() -> None:
    torch.manual_seed(0)
    model, x = Model().eval(), torch.randn(2, WIDTH)
    with torch.no_grad():
        want = model(x)
    first, second = Pipeline(model), Pipeline(model)
    pipe = dovetail.compile_pipeline(first, "diffusion=sim0&sim1")
    assert torch.equal(first(x), want)
    other = dovetail.compile_pipeline(second, "diffusion=sim1")
    assert other.dovetail.components["unet"] is pipe.dovetail.components["unet"]
    assert torch.equal(second(x), want)
    second.unet = copy.deepcopy(second.unet)
    other = dovetail.compile_pipeline(second, "diffusion=sim1")
    assert other.dovetail.components["unet"] is not pipe.dovetail.components["unet"]
    assert torch.equal(second(x), want)
    pipe.dovetail.undo()
    assert torch.equal(second(x), want)
    other.dovetail.undo()
    assert torch.equal(first(x), want)
    assert torch.equal(second(x), want)


@pytest.mark.parametrize("error", [DoesNotFitError, KeyboardInterrupt])
def test_what_fails_while_a_pipeline_is_compiled_leaves_it_as_it_was(
    error: type[BaseException], monkeypatch: pytest.MonkeyPatch
) -> None:
    def settle(self: Component) -> None:
        raise error("no room")

    model = Model().eval()
    pipe = Pipeline(model)
    with monkeypatch.context() as patched:
        patched.setattr(Component, "settle", settle)
        with pytest.raises(error):
            dovetail.compile_pipeline(pipe, "diffusion=sim0&sim1")
    assert _ours(model) == []
    assert HOOK not in vars(model)
    assert type(pipe) is Pipeline
    dovetail.compile_pipeline(pipe, "diffusion=sim0&sim1")


@pytest.mark.fifth
@pytest.mark.parametrize("rests", ["disk", "cpu"])
def test_a_component_without_data_is_converted_before_the_first_picture(rests: str, tmp_path: Path) -> None:
    plain: Any = tiny_pipelines.sd()[0]
    plain.save_pretrained(tmp_path)
    pipe = dovetail.load_pipeline(tmp_path, "diffusion=sim0&sim1", params_backend=rests)
    noise, text = torch.randn(1, 4, 8, 8).bfloat16(), torch.randn(1, 4, 32).bfloat16()

    def answer(unet: Any) -> torch.Tensor:
        with torch.no_grad():
            found: torch.Tensor = unet.to(torch.bfloat16)(noise, torch.tensor(3), text, return_dict=False)[0]
        return found

    assert torch.equal(answer(pipe.unet), answer(plain.unet))
    if rests == "disk":
        assert not has_numbers(next(pipe.unet.parameters()))


def test_a_compiled_pipeline_is_pickled_as_it_was() -> None:
    pipe, call = tiny_pipelines.sd()
    expected = paint(pipe, call)
    dovetail.compile_pipeline(pipe, "diffusion=sim0&sim1")
    for again in (pickle.loads(pickle.dumps(pipe)), copy.deepcopy(pipe)):
        assert type(again) is diffusers.StableDiffusionPipeline
        assert torch.equal(paint(again, call), expected)


@pytest.mark.fifth
@pytest.mark.parametrize("is_painted", [pytest.param(False, marks=pytest.mark.slow), True])
def test_a_pipeline_is_converted_as_a_whole(is_painted: bool) -> None:
    (plain, call), (pipe, _) = tiny_pipelines.sd(), tiny_pipelines.sd()
    dovetail.compile_pipeline(pipe, SPREAD)
    if is_painted:
        paint(pipe, call)
    assert pipe.to(torch.bfloat16) is pipe
    assert torch.equal(paint(pipe, call).cpu(), paint(plain.to(torch.bfloat16), call))
