"""Weights that another library has quantized: their modules run as they are, or are refused before anything moves."""

from __future__ import annotations

import importlib
from typing import Any

import pytest
import torch
from diffusers import FluxPipeline
from torch import nn

import dovetail
from dovetail import demo
from dovetail.compiler.errors import UsageError, WeightError
from dovetail.conventions.dtypes import read_dtypes
from dovetail.runtime.devices.transfers import moved
from dovetail.runtime.devices.wrapped import bytes_of

CONFIGS = [
    "Int8WeightOnlyConfig",
    "Int8DynamicActivationInt8WeightConfig",
    "Float8WeightOnlyConfig",
    "IntxWeightOnlyConfig",
]
X = torch.randn(2, 128, generator=torch.Generator().manual_seed(3))


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(128)
        self.up, self.down = nn.Linear(128, 256), nn.Linear(256, 128)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.down(self.up(self.norm(x)).relu())  # type: ignore[no-any-return]


class Blocks(nn.Module):
    """Four blocks, of which the last is not quantized."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.first = nn.Linear(128, 128)
        self.blocks = nn.ModuleList(Block() for _ in range(4))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.first(x)
        for block in self.blocks:
            x = block(x)
        return x


class Pipe:
    def __init__(self, module: nn.Module) -> None:
        self.components = {"transformer": module}


def quantization() -> Any:
    """Imported where it is used: the tests are collected in environments without it too."""
    return importlib.import_module("torchao.quantization")


def quantized(config: str, module: nn.Module) -> nn.Module:
    def takes(one: nn.Module, name: str) -> bool:
        return isinstance(one, nn.Linear) and "blocks.3" not in name

    quantization().quantize_(module, getattr(quantization(), config)(), filter_fn=takes)
    return module


@pytest.mark.few(2)
@torch.no_grad()
@pytest.mark.parametrize("config", CONFIGS)
def test_modules_that_torchao_quantized_run_as_they_are_on_their_devices_and_the_rest_is_compiled(config: Any) -> None:
    module = quantized(config, Blocks().eval())
    kind, expected = type(module.blocks[0].up.weight), module(X)  # type: ignore[index, union-attr]
    for options in ({}, {"params_backend": "cpu"}, {"split_mode": "row"}):
        pipe = dovetail.compile_pipeline(Pipe(module), "sim0&sim1", **options)  # type: ignore[type-var, arg-type]
        assert torch.equal(module(X), expected)
        assert torch.equal(module(X), expected)
        assert len({str(one.home) for one in pipe.dovetail.components["transformer"].view.weights()}) == 2  # type: ignore[attr-defined]
        assert pipe.dovetail.components["transformer"].programs  # type: ignore[attr-defined]
        dovetail.undo(pipe)  # type: ignore[arg-type]
        assert {type(block.up.weight) for block in module.blocks[:3]} == {kind}  # type: ignore[index, union-attr]
        assert torch.equal(module(X), expected)


@pytest.mark.fifth
@torch.no_grad()
def test_modules_that_are_quantized_between_two_calls_run_as_they_are_from_then_on() -> None:
    module = Blocks().eval()
    dovetail.compile_pipeline(Pipe(module), "sim0&sim1")  # type: ignore[type-var]
    before = module(X)
    quantized("Int8WeightOnlyConfig", module)
    assert torch.equal(module(X), quantized("Int8WeightOnlyConfig", Blocks().eval())(X))
    assert not torch.equal(module(X), before)


@torch.no_grad()
@pytest.mark.parametrize("calls", [0, 1])
def test_weights_that_were_quantized_between_two_calls_are_given_back_where_the_others_were(calls: int) -> None:
    module = Blocks().eval()
    pipe = dovetail.compile_pipeline(Pipe(module), "sim0&sim1")  # type: ignore[type-var]
    module(X)
    quantized("Int8WeightOnlyConfig", module)
    for _ in range(calls):
        module(X)
    dovetail.undo(pipe)  # type: ignore[arg-type]
    assert {str(one.device) for one in module.parameters()} == {"cpu"}
    assert torch.equal(module(X), quantized("Int8WeightOnlyConfig", Blocks().eval())(X))


@torch.no_grad()
def test_a_module_that_torchao_quantized_is_compiled_by_itself_too() -> None:
    module = quantized("Int8WeightOnlyConfig", Blocks().eval())
    assert torch.equal(dovetail.compile(module, (X,), backend="sim0&sim1")(X), module(X))


@pytest.mark.fifth
def test_a_pipeline_that_torchao_quantized_is_planned_without_its_weights_and_gives_the_picture_of_eager() -> None:
    pipe = FluxPipeline.from_pretrained(demo.folder(), torch_dtype=torch.float32)
    pipe.set_progress_bar_config(disable=True)
    quantization().quantize_(pipe.transformer, quantization().Int8WeightOnlyConfig())
    call = {**demo.CALL_DEFAULTS, "num_inference_steps": 1, "output_type": "pt"}
    expected = pipe("a red circle", **call, generator=torch.Generator().manual_seed(0)).images
    dovetail.compile_pipeline(pipe, "sim0&sim1", params_backend="diffusion=cpu")
    found = pipe("a red circle", **call, generator=torch.Generator().manual_seed(0)).images
    assert torch.equal(found.cpu(), expected)


def test_a_quantized_weight_counts_the_bytes_inside_and_keeps_its_class_between_devices() -> None:
    dovetail.compile_pipeline(Pipe(Blocks()), "sim0&sim1")  # type: ignore[type-var]
    weight = quantized("Int8WeightOnlyConfig", Blocks()).first.weight  # type: ignore[union-attr]
    assert 128 * 128 <= bytes_of(weight) < 128 * 128 + 4096 < weight.nbytes  # type: ignore[operator]
    there = moved(moved(weight, torch.device("sim:0")), torch.device("sim:1"))  # type: ignore[arg-type]
    assert (type(there), str(there.device)) == (type(weight), "sim:1")
    assert torch.equal(moved(there, torch.device("cpu")).dequantize(), weight.dequantize())  # type: ignore[union-attr, operator]


class Packed(nn.Parameter):
    """A weight as bitsandbytes has them: what its numbers mean is lost with ``detach()``."""

    __module__ = "bitsandbytes.nn.modules"


class PackedLinear(nn.Linear):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        assert type(self.weight) is Packed
        return super().forward(x)


@torch.no_grad()
@pytest.mark.parametrize("backend", ["cpu", "sim0", "sim0&sim1"])
def test_weights_that_cannot_be_moved_run_on_the_host_and_are_refused_elsewhere_before_anything_moves(
    backend: str,
) -> None:
    module = nn.Sequential(nn.Linear(4, 4), PackedLinear(4, 4)).eval()
    module[1].weight = Packed(module[1].weight.detach(), requires_grad=False)
    x = torch.randn(2, 4)
    expected = module(x)
    if backend == "cpu":
        assert torch.equal(dovetail.compile(module, (x,), backend=backend)(x), expected)
        dovetail.compile_pipeline(Pipe(module), backend)  # type: ignore[type-var]
    else:
        for asked in (
            lambda: dovetail.compile(module, (x,), backend=backend),
            lambda: dovetail.compile_pipeline(Pipe(module), backend),  # type: ignore[type-var]
        ):
            with pytest.raises(WeightError, match=r"^1\.weight of Sequential is a Packed of bitsandbytes.*weights="):
                asked()
    assert torch.equal(module(x), expected)


@pytest.mark.parametrize("dtype", [torch.float8_e4m3fn, "float8_e5m2", "fp8", {"transformer": torch.float8_e4m3fn}])
def test_a_dtype_in_which_nothing_computes_is_refused_before_anything_is_loaded(dtype: Any) -> None:
    with pytest.raises(UsageError, match=r"is a dtype to keep weights in, .*convert --type q8_0, weights=…\)$"):
        dovetail.load_pipeline("nowhere", dtype=dtype)
    assert read_dtypes("bf16") is torch.bfloat16
