"""Components that torchao or bitsandbytes quantizes while they are loaded, as `quantization_config` has it."""

from __future__ import annotations

import importlib
from typing import Any

import diffusers
import pytest
import torch
from diffusers import PipelineQuantizationConfig
from torch import nn

import dovetail
from dovetail import demo
from dovetail.compiler.errors import UsageError, WeightError

pytestmark = pytest.mark.usefixtures("clean_sims")

CALL = {**demo.CALL_DEFAULTS, "num_inference_steps": 1, "output_type": "pt"}


def torchao(kind: str) -> PipelineQuantizationConfig:
    made = getattr(importlib.import_module("torchao.quantization"), kind)()
    return PipelineQuantizationConfig(quant_mapping={"transformer": diffusers.TorchAoConfig(made)})


def bitsandbytes() -> PipelineQuantizationConfig:
    config = diffusers.BitsAndBytesConfig(load_in_4bit=True, bnb_4bit_compute_dtype=torch.float32)
    return PipelineQuantizationConfig(quant_mapping={"transformer": config})


def painted(pipe: Any) -> torch.Tensor:
    pipe.set_progress_bar_config(disable=True)
    found: torch.Tensor = pipe("a red circle", **CALL, generator=torch.Generator().manual_seed(0)).images
    return found.cpu()


@pytest.mark.fifth
@pytest.mark.parametrize("kind", ["Int8WeightOnlyConfig", "Float8WeightOnlyConfig"])
def test_torchao_quantizes_while_loading_and_the_picture_is_that_of_eager_streamed_and_after_undo(kind: str) -> None:
    eager = diffusers.FluxPipeline.from_pretrained(
        demo.folder(), torch_dtype=torch.float32, quantization_config=torchao(kind)
    )
    expected = painted(eager)
    pipe = dovetail.load_pipeline(
        demo.folder(), "sim0&sim1", dtype=torch.float32, quantization_config=torchao(kind),
        params_backend="diffusion=cpu",
    )  # fmt: skip
    assert torch.equal(painted(pipe), expected)
    homes = {str(one.home) for one in pipe.dovetail.components["transformer"].view.weights()}
    assert len(homes) == 2
    held = sum(one.nbytes for one in pipe.dovetail.components["transformer"].view.weights())
    assert held < 0.5 * sum(one.numel() * 4 for one in pipe.transformer.parameters())
    dovetail.undo(pipe)
    assert torch.equal(painted(pipe), expected)


@pytest.mark.skipif(torch.cuda.is_available(), reason="diffusers has bitsandbytes quantize on a GPU alone")
def test_what_diffusers_cannot_quantize_here_is_said_in_a_sentence() -> None:
    pytest.importorskip("bitsandbytes")
    with pytest.raises(WeightError, match=r"^diffusers cannot load [^\n]*: No GPU found[^\n]*$"):
        dovetail.load_pipeline(demo.folder(), "cpu", dtype=torch.float32, quantization_config=bitsandbytes())


@torch.no_grad()
def test_modules_of_bitsandbytes_run_on_the_host_and_are_refused_elsewhere_in_a_sentence() -> None:
    modules = pytest.importorskip("bitsandbytes").nn
    torch.manual_seed(0)
    module = nn.Sequential(nn.Linear(64, 64), modules.Linear4bit(64, 64, compute_dtype=torch.float32)).eval()
    module[1].load_state_dict(nn.Linear(64, 64).state_dict())
    module.to("cpu")
    x = torch.randn(2, 64)
    expected = module(x)
    assert torch.equal(dovetail.compile(module, (x,), backend="cpu")(x), expected)
    with pytest.raises(WeightError, match=r"is a Params4bit of bitsandbytes, which does not go to sim0: leave it on"):
        dovetail.compile(module, (x,), backend="sim0")


def test_configs_of_another_kind_and_twice_the_same_component_are_refused() -> None:
    with pytest.raises(UsageError, match=r"takes a diffusers\.PipelineQuantizationConfig, and no dict"):
        dovetail.load_pipeline(demo.folder(), "cpu", quantization_config={"load_in_4bit": True})
    file = demo.folder() / "transformer"
    with pytest.raises(UsageError, match="quantized by quantization_config"):
        dovetail.load_pipeline(
            demo.folder(), "cpu", quantization_config=torchao("Int8WeightOnlyConfig"), weights={"transformer": file}
        )
    with pytest.raises(UsageError, match="loads no 'transformer'"):
        dovetail.load_pipeline(
            demo.folder(), "cpu", quantization_config=torchao("Int8WeightOnlyConfig"), quant="transformer=q8_0"
        )
    with pytest.raises(UsageError, match="load_single_file does not take quantization_config"):
        dovetail.load_single_file("a.safetensors", "cpu", quantization_config=torchao("Int8WeightOnlyConfig"))
