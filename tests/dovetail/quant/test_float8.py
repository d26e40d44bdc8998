"""Weights that rest in 8-bit floats: the bits of diffusers' layerwise casting, however they are split and streamed."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import diffusers
import pytest
import torch
from diffusers.hooks import apply_layerwise_casting
from torch import nn
from transformers import CLIPTextModel

import dovetail
from dovetail import demo
from dovetail.conventions.layerwise import cast_layerwise
from testbed.pipelines import tiny_pipelines

pytestmark = pytest.mark.usefixtures("clean_sims")

FLOAT8 = torch.float8_e4m3fn


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DOVETAIL_CACHE", "1")
    monkeypatch.setenv("DOVETAIL_CACHE_DIR", str(tmp_path / "cache"))


def transformer(dtype: torch.dtype = torch.bfloat16) -> Any:
    return diffusers.FluxTransformer2DModel.from_pretrained(demo.folder() / "transformer", torch_dtype=dtype).eval()


def call_of(model: Any, dtype: torch.dtype) -> dict[str, Any]:
    drawn = torch.Generator().manual_seed(0)
    return {
        "hidden_states": torch.randn(1, 16, model.config.in_channels, generator=drawn).to(dtype),
        "encoder_hidden_states": torch.randn(1, 12, model.config.joint_attention_dim, generator=drawn).to(dtype),
        "pooled_projections": torch.randn(1, model.config.pooled_projection_dim, generator=drawn).to(dtype),
        "timestep": torch.tensor([0.5]).to(dtype),
        "img_ids": torch.zeros(16, 3, dtype=dtype),
        "txt_ids": torch.zeros(12, 3, dtype=dtype),
        "return_dict": False,
    }


def compiled(model: Any, call: dict[str, Any], **options: Any) -> Any:
    return dovetail.compile(model, (), call, weights=demo.folder() / "transformer", quant="f8", **options)


@pytest.mark.fifth
@torch.no_grad()
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32], ids=str)
def test_the_bits_are_those_of_layerwise_casting_split_and_streamed(dtype: torch.dtype) -> None:
    eager = transformer(dtype)
    call = call_of(eager, dtype)
    eager.enable_layerwise_casting(storage_dtype=FLOAT8, compute_dtype=dtype)
    (expected,) = eager(**call)
    assert not torch.equal(expected, transformer(dtype)(**call)[0])
    for options in (
        {"backend": "cpu"},
        {"backend": "sim0&sim1"},
        {"backend": "sim0", "params_backend": "disk", "max_vram": 0.012},
        {"backend": "sim0&sim1", "params_backend": "cpu"},
    ):
        (found,) = compiled(transformer(dtype), call, **options)(**call)
        assert torch.equal(found.cpu(), expected), options


@pytest.mark.fifth
def test_each_weight_counts_one_byte() -> None:
    model = transformer()
    made = compiled(model, call_of(model, torch.bfloat16), backend="sim0&sim1")
    cast = {name for name, one in made.program.weights.items() if one.quant == "F8_E4M3"}
    assert cast == set(cast_layerwise(model))
    assert all(one.nbytes == math.prod(one.shape) for name, one in made.program.weights.items() if name in cast)


@pytest.mark.fifth
@torch.no_grad()
def test_rows_of_them_are_split_over_devices() -> None:
    model = transformer(torch.float32)
    call = call_of(model, torch.float32)
    model.enable_layerwise_casting(storage_dtype=FLOAT8, compute_dtype=torch.float32)
    (expected,) = model(**call)
    made = compiled(transformer(torch.float32), call, backend="sim0&sim1", split_mode="row")
    assert made.program.bounds
    torch.testing.assert_close(made(**call)[0].cpu(), expected)


@pytest.mark.parametrize("name", ["flux", "sdxl", "sd"])
def test_the_weights_that_are_cast_are_those_that_diffusers_casts(name: str) -> None:
    pipe, _ = tiny_pipelines.PIPELINES[name]()
    for part in (one for one in pipe.components.values() if isinstance(one, diffusers.ModelMixin)):
        names = set(cast_layerwise(part))
        part.enable_layerwise_casting(storage_dtype=FLOAT8, compute_dtype=torch.float32)
        assert {key for key, one in part.named_parameters() if one.dtype == FLOAT8} == names
        assert names


@torch.no_grad()
def test_encoders_are_cast_as_their_function_does() -> None:
    eager = CLIPTextModel.from_pretrained(demo.folder() / "text_encoder", dtype=torch.bfloat16).eval()
    ids = torch.arange(12)[None] % 7
    plain = eager(ids).last_hidden_state
    apply_layerwise_casting(eager, FLOAT8, torch.bfloat16)
    expected = eager(ids).last_hidden_state
    assert not torch.equal(plain, expected)
    pipe = dovetail.load_pipeline(demo.folder(), "cpu", dtype=torch.bfloat16, quant="text_encoder=f8")
    assert torch.equal(pipe.text_encoder(ids).last_hidden_state, expected)


@pytest.mark.fifth
def test_a_picture_of_two_devices_is_that_of_casting() -> None:
    eager = diffusers.FluxPipeline.from_pretrained(demo.folder(), torch_dtype=torch.float32)
    eager.set_progress_bar_config(disable=True)
    eager.transformer.enable_layerwise_casting(storage_dtype=FLOAT8, compute_dtype=torch.float32)
    call = {**demo.CALL_DEFAULTS, "num_inference_steps": 2, "output_type": "pt"}
    expected = eager("a red circle", **call, generator=torch.Generator().manual_seed(0)).images
    pipe = dovetail.load_pipeline(
        demo.folder(), "sim0&sim1", dtype=torch.float32, quant={"diffusion": "f8"}, params_backend="diffusion=cpu"
    )
    pipe.set_progress_bar_config(disable=True)
    found = pipe("a red circle", **call, generator=torch.Generator().manual_seed(0)).images
    assert torch.equal(found.cpu(), expected)


def test_a_skipped_module_keeps_its_dtype() -> None:
    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.proj_in, self.up, self.norm_out = nn.Linear(4, 4), nn.Linear(4, 4), nn.Linear(4, 4)

    assert cast_layerwise(Model()) == ["up.weight", "up.bias"]
