"""The handle of a compiled pipeline, components of two pipelines, and what is left when compiling fails half-way."""

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
from dovetail.components.component import Component
from dovetail.conventions.libraries import HOOK
from dovetail.conventions.replacements import Replacement
from testbed.pipelines import tiny_pipelines
from testbed.pipelines.tiny_pipelines import paint

from ..components.small_pipeline import WIDTH, Model, Pipeline


def _ours(module: nn.Module) -> list[str]:
    return [name for one in module.modules() for name, value in vars(one).items() if isinstance(value, Replacement)]


def test_the_handle_has_the_attributes_of_its_pipeline_and_sets_them_there() -> None:
    pipe = Pipeline(Model().eval())
    handle = dovetail.compile_pipeline(pipe, "diffusion=sim0&sim1")
    assert handle.unet is pipe.unet
    assert handle.save_pretrained.__self__ is pipe
    handle.scheduler = "another"
    assert pipe.scheduler == "another"
    assert "scheduler" not in vars(handle)
    with pytest.raises(UsageError, match="is compiled"):
        handle.unet = Model()
    with pytest.raises(AttributeError, match="no_such_thing"):
        _ = handle.no_such_thing
    assert "save_pretrained" in dir(handle)


def test_a_component_of_two_pipelines_is_refused_with_a_way_out_that_works() -> None:
    torch.manual_seed(0)
    model, x = Model().eval(), torch.randn(2, WIDTH)
    with torch.no_grad():
        want = model(x)
    first, second = Pipeline(model), Pipeline(model)
    handle = dovetail.compile_pipeline(first, "diffusion=sim0&sim1")
    assert torch.equal(first(x), want)
    with pytest.raises(UsageError, match=r"pipe\.unet = copy\.deepcopy\(pipe\.unet\)"):
        dovetail.compile_pipeline(second, "diffusion=sim1")
    second.remove_all_hooks()
    with pytest.raises(UsageError, match="another pipeline"):
        dovetail.compile_pipeline(second, "diffusion=sim1")
    second.unet = copy.deepcopy(second.unet)
    other = dovetail.compile_pipeline(second, "diffusion=sim1")
    assert torch.equal(second(x), want)
    handle.undo()
    assert torch.equal(second(x), want)
    other.undo()
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


@pytest.mark.parametrize("rests", ["disk", "cpu"])
def test_a_component_without_data_is_converted_before_the_first_picture(rests: str, tmp_path: Path) -> None:
    plain: Any = tiny_pipelines.sd()[0]
    plain.save_pretrained(tmp_path)
    handle = dovetail.load_pipeline(tmp_path, "diffusion=sim0&sim1", params_backend=rests)
    noise, text = torch.randn(1, 4, 8, 8).bfloat16(), torch.randn(1, 4, 32).bfloat16()

    def answer(unet: Any) -> torch.Tensor:
        with torch.no_grad():
            found: torch.Tensor = unet.to(torch.bfloat16)(noise, torch.tensor(3), text, return_dict=False)[0]
        return found

    assert torch.equal(answer(handle.unet), answer(plain.unet))
    if rests == "disk":
        assert next(handle.unet.parameters()).untyped_storage().nbytes() <= 2


def test_a_compiled_pipeline_is_pickled_as_it_was() -> None:
    pipe, call = tiny_pipelines.sd()
    expected = paint(pipe, call)
    dovetail.compile_pipeline(pipe, "diffusion=sim0&sim1")
    for again in (pickle.loads(pickle.dumps(pipe)), copy.deepcopy(pipe)):
        assert type(again) is diffusers.StableDiffusionPipeline
        assert torch.equal(paint(again, call), expected)
