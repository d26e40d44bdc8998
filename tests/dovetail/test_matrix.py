"""Every way to split × every place to rest × every kind of file × every way to apply a LoRA × one to three devices."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from functools import cache, partial
from pathlib import Path
from typing import Any

import diffusers
import gguf
import pytest
import torch
from torch import nn

import dovetail
from dovetail.compiler.errors import UsageError
from dovetail.compiler.spec.modes import TOGETHER
from dovetail.convert import plan_conversion
from dovetail.runtime import sim
from testbed.pipelines.tiny_pipelines import wide_flux
from tests.cases import drawn, slow_but

SPLITS = ("layer", "row", "tensor", "sequence")
RESTS = ("auto", "cpu", "disk")
FILES = ("safetensors", "q8_0", "q4_k")
LORAS = ("none", "at_runtime", "immediately")
DEVICES = (1, 2, 3)
SCALE = 0.7
CALLS = range(6)
"""Inputs: the error of one call is up to a tenth above or below, whichever way it is computed; that of six tells."""

CELLS = list(itertools.product(SPLITS, RESTS, FILES, LORAS, DEVICES))
QUICK = (
    ("layer", "cpu", "safetensors", "immediately", 2),
    ("layer", "auto", "q8_0", "none", 1),
    ("row", "disk", "q8_0", "none", 2),
    ("row", "auto", "q4_k", "at_runtime", 3),
    ("tensor", "cpu", "q8_0", "at_runtime", 2),
    ("tensor", "disk", "safetensors", "none", 3),
    ("sequence", "auto", "q4_k", "none", 3),
    ("sequence", "cpu", "safetensors", "immediately", 2),
)
MATRIX = slow_but(QUICK, [*QUICK, *drawn([cell for cell in CELLS if cell not in QUICK], 64)])


@pytest.fixture(autouse=True)
def _sims() -> None:
    sim.enable()


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A saved pipeline, its transformer's weights in GGUF files beside it, and a LoRA."""
    folder = tmp_path_factory.mktemp("matrix")
    pipe, _ = wide_flux()
    pipe.save_pretrained(folder)
    for kind in FILES[1:]:
        plan_conversion(folder / "transformer", folder / f"{kind}.gguf", kind).run()
    save_lora(pipe.transformer, folder / "lora")
    return folder


def save_lora(transformer: Any, folder: Path) -> None:
    from peft import LoraConfig
    from peft.utils import get_peft_model_state_dict

    targets = ["to_q", "to_v", "to_out.0", "ff.net.0.proj", "proj_mlp", "proj_out"]
    transformer.add_adapter(LoraConfig(r=4, lora_alpha=8, target_modules=targets, init_lora_weights=False), "made")
    generator = torch.Generator().manual_seed(11)
    state = get_peft_model_state_dict(transformer, adapter_name="made")
    state = {name: torch.randn(t.shape, generator=generator) * 0.05 for name, t in state.items()}
    diffusers.FluxPipeline.save_lora_weights(folder, transformer_lora_layers=state)
    transformer.delete_adapters("made")


@pytest.fixture(scope="module")
def references(folder: Path) -> Callable[[str, str], tuple[list[torch.Tensor], list[torch.Tensor]]]:
    """What eager yields for each file and way to apply a LoRA: in float32, and in float64."""
    return cache(partial(reference, folder))


def reference(folder: Path, kind: str, way: str) -> tuple[list[torch.Tensor], list[torch.Tensor]]:
    pipe, _ = wide_flux()
    if kind != "safetensors":
        pipe.transformer.load_state_dict(dequantized(folder / f"{kind}.gguf"))
    if way != "none":
        pipe.load_lora_weights(folder / "lora", adapter_name="made")
        pipe.set_adapters("made", SCALE)
    exact = run(pipe.transformer, torch.float64)
    if way == "immediately":
        pipe.fuse_lora()
    return run(pipe.transformer, torch.float32), exact


def dequantized(path: Path) -> dict[str, torch.Tensor]:
    return {
        one.name: torch.tensor(gguf.dequantize(one.data, one.tensor_type)).reshape(*map(int, reversed(one.shape)))
        for one in gguf.GGUFReader(path).tensors
    }


def run(transformer: nn.Module, dtype: torch.dtype) -> list[torch.Tensor]:
    import copy

    model = transformer if dtype == torch.float32 else copy.deepcopy(transformer).to(dtype)
    with torch.no_grad():
        return [model(**inputs(call, dtype))[0] for call in CALLS]


def inputs(call: int = 0, dtype: torch.dtype = torch.float32) -> dict[str, Any]:
    generator = torch.Generator().manual_seed(5 + call)

    def noise(*shape: int) -> torch.Tensor:
        return torch.randn(shape, generator=generator).to(dtype)

    return {
        "hidden_states": noise(1, 16, 16),
        "encoder_hidden_states": noise(1, 8, 32),
        "pooled_projections": noise(1, 32),
        "timestep": torch.tensor([0.6], dtype=dtype),
        "img_ids": torch.cartesian_prod(torch.zeros(1), torch.arange(4.0), torch.arange(4.0)).to(dtype),
        "txt_ids": torch.zeros(8, 3, dtype=dtype),
        "return_dict": False,
    }


def error(results: list[torch.Tensor], exact: list[torch.Tensor]) -> float:
    result, right = torch.stack(results).double(), torch.stack(exact)
    return float((result - right).norm() / right.norm())


@pytest.mark.slow
@pytest.mark.few(4, quick=3)
@pytest.mark.parametrize(("split", "rest", "kind", "way", "devices"), MATRIX)
def test_every_combination_agrees_with_eager_or_is_refused(
    folder: Path, references: Any, split: str, rest: str, kind: str, way: str, devices: int
) -> None:
    options: dict[str, Any] = {
        "backend": "diffusion=" + "&".join(f"sim{index}" for index in range(devices)),
        "split_mode": f"diffusion={split}",
        "tensor_split": ",".join(["5", "3", "2"][:devices]),
        "params_backend": f"diffusion={rest}",
        "weights": {} if kind == "safetensors" else {"transformer": folder / f"{kind}.gguf"},
        "lora": [] if way == "none" else [f"{folder / 'lora'}:{SCALE}"],
        "lora_apply_mode": "auto" if way == "none" else way,
    }
    if way == "immediately" and kind != "safetensors":
        with pytest.raises(UsageError, match="quantized"):
            pipe = dovetail.load_pipeline(folder, **options)
            pipe.transformer(**inputs())
        return
    pipe = dovetail.load_pipeline(folder, **options)
    with pipe.dovetail:
        results = run(pipe.transformer, torch.float32)
        again = pipe.transformer(**inputs())[0]
        used = {device.name for device in pipe.dovetail.programs["transformer"][0].program.devices}
    eager, exact = references(kind, way)
    assert torch.equal(again, results[0])
    assert len(used) == devices
    if split == "layer":
        assert all(map(torch.equal, results, eager))
    most = 1.5 if split in TOGETHER else 1.05  # sums of terms are added in another order
    assert error(results, exact) <= most * error(eager, exact)


def test_the_quick_cells_bring_every_setting() -> None:
    settings = (SPLITS, RESTS, FILES, LORAS, DEVICES)
    assert [set(one) for one in zip(*QUICK, strict=True)] == list(map(set, settings))
