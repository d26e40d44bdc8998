"""Caches and castings of diffusers, which change parts by hooks, do in a compiled pipeline what they do in eager."""

from __future__ import annotations

import copy
import gc
from collections.abc import Callable
from typing import Any

import diffusers
import pytest
import torch
from torch.utils import _pytree as pytree

import dovetail
from testbed.pipelines import tiny_pipelines
from testbed.pipelines.tiny_pipelines import paint
from tests.cases import slow_but

from .small_pipeline import Model, Pipeline

SPREAD = "diffusion=sim0&sim1,te=sim1,vae=sim0"


def _first_block(_: Any) -> Any:
    return diffusers.FirstBlockCacheConfig(threshold=0.5)


def _pyramid(pipe: Any) -> Any:
    return diffusers.PyramidAttentionBroadcastConfig(
        spatial_attention_block_skip_range=2,
        spatial_attention_timestep_skip_range=(0, 1000),
        current_timestep_callback=lambda: pipe._current_timestep,
    )


def _faster(pipe: Any) -> Any:
    return diffusers.FasterCacheConfig(
        spatial_attention_timestep_skip_range=(-1, 900),
        current_timestep_callback=lambda: pipe._current_timestep,
        tensor_format="BCHW",
        is_guidance_distilled=True,
    )


def _taylor(_: Any) -> Any:
    return diffusers.TaylorSeerCacheConfig(cache_interval=2, disable_cache_before_step=2)


def _magnitude(_: Any) -> Any:
    return diffusers.MagCacheConfig(threshold=0.5, num_inference_steps=6, mag_ratios=[1.0] * 6)


def _spectral(_: Any) -> Any:
    return diffusers.SeaCacheConfig(threshold=100.0)


FLUX = (_first_block, _pyramid, _faster, _taylor, _magnitude)
MADE = [*((tiny_pipelines.flux, config) for config in FLUX), (tiny_pipelines.wan, _spectral)]
CACHES = [(maker, config, before) for maker, config in MADE for before in (False, True)]


@pytest.mark.parametrize(("maker", "config", "before"), slow_but([], CACHES))
def test_a_cache_of_diffusers_works_compiled_and_undone(
    maker: Callable[[], Any], config: Callable[[Any], Any], before: bool
) -> None:
    pipe, call = maker()
    call = {**call, "num_inference_steps": 4 if config is _first_block else 6}
    eager = copy.deepcopy(pipe)
    plain = paint(eager, call)
    eager.transformer.enable_cache(config(eager))
    cached = paint(eager, call)
    assert not torch.equal(cached, plain)
    if before:
        pipe.transformer.enable_cache(config(pipe))
    dovetail.compile_pipeline(pipe, SPREAD)
    if not before:
        assert torch.equal(paint(pipe, call).cpu(), plain)
        pipe.transformer.enable_cache(config(pipe))
    assert torch.equal(paint(pipe, call).cpu(), cached)
    pipe.transformer.disable_cache()
    assert torch.equal(paint(pipe, call).cpu(), plain)
    pipe.transformer.enable_cache(config(pipe))
    pipe.dovetail.undo()
    assert torch.equal(paint(pipe, call), cached)
    pipe.transformer.disable_cache()
    assert torch.equal(paint(pipe, call), plain)


def nucleus() -> tuple[Any, dict[str, Any]]:
    """The one transformer that takes a cache of the text's keys and values, and a call of it."""
    torch.manual_seed(0)
    model = diffusers.NucleusMoEImageTransformer2DModel(
        in_channels=16, out_channels=4, num_layers=5, attention_head_dim=16, num_attention_heads=2,
        joint_attention_dim=32, axes_dims_rope=(4, 6, 6), num_experts=4, moe_intermediate_dim=16, capacity_factors=2.0,
    ).eval()  # fmt: skip
    for weight in model.parameters():  # those of the experts are not initialized by themselves
        torch.nn.init.normal_(weight, std=0.2)
    call = {
        "hidden_states": torch.randn(1, 16, 16),
        "img_shapes": [(1, 4, 4)],
        "encoder_hidden_states": torch.randn(1, 7, 32),
        "encoder_hidden_states_mask": torch.ones(1, 7, dtype=torch.bool),
        "timestep": torch.tensor([0.6]),
        "return_dict": False,
    }
    return model, call


@pytest.mark.parametrize("before", slow_but([], [False, True]))
def test_a_cache_of_the_texts_keys_gives_each_prompt_its_own(before: bool) -> None:
    model, call = nucleus()
    other = {**call, "encoder_hidden_states": torch.randn(1, 7, 32)}
    calls = (call, other, call, {**other, "timestep": torch.tensor([0.2])})
    eager = copy.deepcopy(model)
    eager.enable_cache(diffusers.TextKVCacheConfig())
    with torch.no_grad():
        expected = [eager(**one)[0] for one in calls]
        assert not torch.equal(expected[0], expected[1])
        pipe = Pipeline(model)
        if before:
            model.enable_cache(diffusers.TextKVCacheConfig())
        dovetail.compile_pipeline(pipe, "diffusion=sim0&sim1")
        if not before:
            pipe.unet(**call)
            model.enable_cache(diffusers.TextKVCacheConfig())
        found = [pipe.unet(**one)[0].cpu() for one in calls]
        there = pytree.tree_map_only(torch.Tensor, lambda tensor: tensor.to("sim:0"), calls)
        found += [pipe.unet(**one)[0].cpu() for one in there]
    assert all(map(torch.equal, found, expected * 2))


@pytest.mark.parametrize("before", slow_but([], [False, True]))
@pytest.mark.parametrize("storage", slow_but([torch.float8_e4m3fn], [torch.float8_e4m3fn, torch.float16]))
def test_weights_that_diffusers_keeps_in_a_small_dtype_compute_as_in_eager(storage: torch.dtype, before: bool) -> None:
    pipe, call = tiny_pipelines.sd()
    eager = copy.deepcopy(pipe)
    plain = paint(eager, call)
    eager.unet.enable_layerwise_casting(storage_dtype=storage, compute_dtype=torch.float32)
    expected = paint(eager, call)
    assert not torch.equal(expected, plain)
    if before:
        pipe.unet.enable_layerwise_casting(storage_dtype=storage, compute_dtype=torch.float32)
    dovetail.compile_pipeline(pipe, SPREAD)
    if not before:
        assert torch.equal(paint(pipe, call).cpu(), plain)
        pipe.unet.enable_layerwise_casting(storage_dtype=storage, compute_dtype=torch.float32)
    assert torch.equal(paint(pipe, call).cpu(), expected)


@pytest.mark.fifth
def test_a_function_that_gets_its_place_back_after_compiling_is_compiled_again() -> None:
    pipe = Pipeline(Model().eval())
    x = torch.randn(2, 32)
    plain = pipe(x)
    wrapped, part = pipe.unet.forward, pipe.unet.blocks[1]
    inside = part.forward
    part.forward = lambda *args: inside(*args) * 1.5
    pipe.unet.forward = lambda *args: wrapped(*args) * 1.5
    changed = pipe(x)
    dovetail.compile_pipeline(pipe, "diffusion=sim0&sim1")
    assert torch.equal(pipe(x).cpu(), changed)
    pipe.unet.forward, part.forward = wrapped, inside
    assert torch.equal(pipe(x).cpu(), plain)
    assert pipe.dovetail.programs["unet"]
    pipe.dovetail.undo()
    assert torch.equal(pipe(x), plain)


@pytest.mark.fifth
def test_a_part_that_is_gone_is_not_looked_for_at_the_next_picture() -> None:
    pipe = Pipeline(Model().eval())
    x = torch.randn(2, 32)
    eager = copy.deepcopy(pipe)
    dovetail.compile_pipeline(pipe, "diffusion=sim0&sim1")
    pipe(x)
    for one in (eager, pipe):
        torch.manual_seed(1)
        one.unet.last = torch.nn.Linear(32, 32)
    for _ in range(2):  # the first still knows the part that was there
        assert torch.equal(pipe(x).cpu(), eager(x))
        gc.collect()
