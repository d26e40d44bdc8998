"""A component that is exchanged for another, or taken out: the picture is eager's, and the old one is as it was."""

from __future__ import annotations

import copy
import gc
from collections.abc import Callable
from typing import Any

import diffusers
import pytest
import torch
from torch import nn

import dovetail
from dovetail.compiler.errors import UsageError
from dovetail.conventions.libraries import HOOK
from dovetail.conventions.replacements import Replacement
from dovetail.runtime import sim
from testbed.pipelines import tiny_pipelines
from testbed.pipelines.tiny_pipelines import paint
from tests.cases import slow_but

SPREAD = "diffusion=sim0&sim1,te=sim1,vae=sim0"
NAMES = ("vae", "unet", "text_encoder")


def set_attribute(pipe: Any, name: str, module: Any) -> None:
    setattr(pipe, name, module)


def register(pipe: Any, name: str, module: Any) -> None:
    pipe.register_modules(**{name: module})


def another(module: nn.Module) -> nn.Module:
    """A copy with other weights."""
    made = copy.deepcopy(module)
    torch.manual_seed(3)
    with torch.no_grad():
        for weight in made.parameters():
            weight.add_(0.1 * torch.randn_like(weight))
    return made


def is_ordinary(module: nn.Module) -> bool:
    ours = (one for part in module.modules() for one in vars(part).values() if isinstance(one, Replacement))
    devices = {tensor.device.type for tensor in module.parameters()}
    return not any(ours) and HOOK not in vars(module) and devices == {"cpu"}


@pytest.mark.fifth
@pytest.mark.few(1)
@pytest.mark.parametrize("rests", slow_but([""], ["", "*=cpu", "unet=cpu"]))
@pytest.mark.parametrize("exchange", [set_attribute, register])
@pytest.mark.parametrize("name", slow_but(["vae"], NAMES))
def test_the_picture_is_that_of_the_new_component_and_the_old_one_is_as_it_was(
    name: str, exchange: Callable[[Any, str, Any], None], rests: str
) -> None:
    pipe, call = tiny_pipelines.sd()
    old, new = getattr(pipe, name), another(getattr(pipe, name))
    first = paint(pipe, call)
    exchange(pipe, name, new)
    second = paint(pipe, call)
    assert not torch.equal(first, second)
    exchange(pipe, name, old)
    dovetail.compile_pipeline(pipe, SPREAD, params_backend=rests)
    before = pipe.dovetail.components[name].devices
    for module, expected in ((old, first), (new, second), (old, first), (new, second)):
        exchange(pipe, name, module)
        assert getattr(pipe, name) is module
        assert torch.equal(paint(pipe, call).cpu(), expected)
        assert pipe.dovetail.components[name].module is module
        assert pipe.dovetail.components[name].devices == before
        assert pipe.dovetail.programs[name]
        assert is_ordinary(old if module is new else new)
    pipe.dovetail.undo()
    assert is_ordinary(new)
    assert torch.equal(paint(pipe, call), second)


@pytest.mark.fifth
def test_what_takes_the_place_of_nothing_is_compiled_and_what_is_taken_out_is_freed() -> None:
    pipe, call = tiny_pipelines.sd()
    expected, vae = paint(pipe, call), copy.deepcopy(pipe.vae)
    gc.collect()
    gc.disable()
    try:
        sim.enable()
        before = [sim.stats(index).in_use for index in range(2)]
        dovetail.compile_pipeline(pipe, "sim1,vae=sim0")
        assert torch.equal(paint(pipe, call).cpu(), expected)
        assert sim.stats(0).in_use > before[0]
        pipe.vae = None
        assert "vae" not in pipe.dovetail.components
        assert pipe.components["vae"] is None
        assert pipe.config.vae == (None, None)
        assert sim.stats(0).in_use == before[0]
        latents = paint(pipe, call, "latent")
        pipe.vae = vae
        assert torch.equal(paint(pipe, call).cpu(), expected)
        assert sim.stats(0).in_use > before[0]
        assert latents.isfinite().all()
        del pipe.unet
        assert "unet" not in pipe.dovetail.components
        del pipe, vae, latents
        assert [sim.stats(index).in_use for index in range(2)] == before
    finally:
        gc.enable()


@pytest.mark.fifth
def test_a_refused_exchange_changes_nothing() -> None:
    pipe, call = tiny_pipelines.sd()
    expected = paint(pipe, call)
    other, _ = tiny_pipelines.sd()
    dovetail.compile_pipeline(other, "sim0")
    dovetail.compile_pipeline(pipe, SPREAD)
    with pytest.raises(UsageError, match=r"is compiled as a component of another pipeline: give this one a copy"):
        pipe.vae = other.vae
    with pytest.raises(UsageError, match=r"^unet is compiled by dovetail, and OptimizedModule cannot compile it once"):
        pipe.unet = torch.compile(pipe.unet)
    assert torch.equal(paint(pipe, call).cpu(), expected)
    pipe.unet = pipe.unet
    pipe.vae = copy.deepcopy(other.vae)
    assert torch.equal(paint(pipe, call).cpu(), expected)


@pytest.mark.slow
def test_a_vae_gets_the_tiles_that_were_asked_for_and_the_old_one_its_own_back() -> None:
    pipe, call = tiny_pipelines.sd()
    call = {**call, "height": 64, "width": 64}
    old, new = pipe.vae, another(pipe.vae)
    pipe.vae = new
    dovetail.compile_pipeline(pipe, "sim0", vae_tiling="32")
    expected = paint(pipe, call)
    pipe.dovetail.undo()
    pipe.vae = old
    dovetail.compile_pipeline(pipe, "sim0", vae_tiling="32")
    pipe.vae = new
    assert (new.use_tiling, old.use_tiling) == (True, False)
    assert torch.equal(paint(pipe, call).cpu(), expected.cpu())
    pipe.dovetail.undo()
    assert not new.use_tiling


@pytest.mark.slow
def test_what_is_loaded_rests_in_host_memory_in_the_place_of_what_rests_in_files(
    tmp_path: Any, caplog: pytest.LogCaptureFixture
) -> None:
    pipe, call = tiny_pipelines.sd()
    pipe.save_pretrained(tmp_path)
    new = another(pipe.vae)
    pipe.vae = copy.deepcopy(new)
    expected = paint(pipe, call)
    loaded = dovetail.load_pipeline(tmp_path, SPREAD, params_backend="disk")
    loaded.vae = new
    assert "the new vae lies in no file: its weights are kept in host memory" in caplog.text
    assert torch.equal(paint(loaded, call).cpu(), expected)
    assert isinstance(loaded, diffusers.StableDiffusionPipeline)


@pytest.mark.slow
def test_two_components_may_change_places_and_each_is_compiled() -> None:
    pipe, call = tiny_pipelines.sdxl()
    first, (one, other) = paint(pipe, call), (pipe.text_encoder, pipe.text_encoder_2)
    dovetail.compile_pipeline(pipe, SPREAD)
    pipe.text_encoder, pipe.text_encoder_2 = other, one
    assert [pipe.dovetail.components[name].module for name in ("text_encoder", "text_encoder_2")] == [other, one]
    pipe.text_encoder, pipe.text_encoder_2 = one, other
    assert torch.equal(paint(pipe, call).cpu(), first)
    dovetail.undo(pipe)
    assert is_ordinary(one)
    assert is_ordinary(other)
