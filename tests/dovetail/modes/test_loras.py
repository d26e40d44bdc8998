"""Adapters of a denoiser that all devices compute together: at runtime, swapped in place, and merged into weights."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from peft import LoraConfig
from safetensors.torch import load_file

import dovetail
from dovetail.passes.batches.divide import micro_batches_of
from dovetail.runtime import sim
from testbed.pipelines.tiny_pipelines import flux, paint, sd

from .test_pictures import NEAR, off, programs_of, together

FILE = "pytorch_lora_weights.safetensors"
TARGETS = ["to_q", "to_v", "to_out.0", "ff.net.0.proj", "proj_mlp", "proj_out"]
MODES = ("tensor", "sequence")


@pytest.fixture(autouse=True)
def _sims() -> None:
    sim.enable()


@pytest.fixture(scope="module")
def states(tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, torch.Tensor]]:
    """The weights of two adapters of one form."""
    return [saved(tmp_path_factory.mktemp("lora"), seed) for seed in (11, 12)]


def saved(folder: Path, seed: int) -> dict[str, torch.Tensor]:
    from peft.utils import get_peft_model_state_dict

    pipe, _ = flux()
    config = LoraConfig(r=4, lora_alpha=8, target_modules=TARGETS, init_lora_weights=False)
    pipe.transformer.add_adapter(config, "made")
    generator = torch.Generator().manual_seed(seed)
    found = get_peft_model_state_dict(pipe.transformer, adapter_name="made")
    drawn = {name: torch.randn(one.shape, generator=generator) * 0.05 for name, one in found.items()}
    type(pipe).save_lora_weights(folder, transformer_lora_layers=drawn)
    return load_file(folder / FILE)


def loaded(pipe: Any, state: dict[str, torch.Tensor], **more: Any) -> None:
    pipe.transformer.load_lora_adapter(state, prefix="transformer", adapter_name="one", **more)


@pytest.mark.slow
@pytest.mark.few(1)
@pytest.mark.parametrize("mode", MODES)
def test_an_adapter_counts_at_runtime_and_when_it_is_swapped_in_place(mode: str, states: Any) -> None:
    expected = []
    for state in states:
        eager, call = flux()
        loaded(eager, state)
        expected.append(paint(eager, call))
    made, call = flux()
    pipe = together(made, mode, "3:2")
    with pipe.dovetail:
        loaded(pipe, states[0])
        assert off(paint(pipe, call), expected[0]) < NEAR
        (before,) = programs_of(pipe)
        assert before.is_grouped
        loaded(pipe, states[1], hotswap=True)
        assert off(paint(pipe, call), expected[1]) < NEAR
        assert programs_of(pipe) == [before]


@pytest.mark.slow
@pytest.mark.few(1)
@pytest.mark.parametrize("mode", MODES)
def test_an_adapter_is_merged_and_taken_out_again(mode: str, states: Any) -> None:
    eager, call = flux()
    plain = paint(eager, call)
    loaded(eager, states[0])
    eager.fuse_lora()
    expected = paint(eager, call)
    made, call = flux()
    pipe = together(made, mode, "3:2")
    with pipe.dovetail:
        paint(pipe, call)
        loaded(pipe, states[0])
        pipe.fuse_lora()
        assert off(paint(pipe, call), expected) < NEAR
        pipe.unfuse_lora()
        pipe.unload_lora_weights()
        assert off(paint(pipe, call), plain) < NEAR


@pytest.mark.slow
def test_an_adapter_counts_where_halves_of_guidance_are_split_by_batch() -> None:
    eager, call = sd()
    made, _ = sd()
    for one in (eager, made):
        torch.manual_seed(3)
        one.unet.add_adapter(LoraConfig(r=4, target_modules=["to_q", "to_v"], init_lora_weights=False), "one")
    expected = paint(eager, call)
    pipe = together(made, "batch", "1:1")
    with pipe.dovetail:
        assert off(paint(pipe, call), expected) < NEAR
        (program,) = programs_of(pipe)
        assert program.is_grouped
        assert program.adapters or any(weight.kind == "adapter" for weight in program.weights.values())
        pipe.fuse_lora()
        assert off(paint(pipe, call), expected) < NEAR


@pytest.mark.slow
def test_an_adapter_counts_in_micro_batches(states: Any) -> None:
    eager, call = flux()
    several = {**call, "num_images_per_prompt": 2}
    loaded(eager, states[0])
    expected = paint(eager, several)
    pipe, _ = flux()
    dovetail.compile_pipeline(pipe, "sim0,transformer=sim0&sim1", micro_batches="transformer=2")
    with pipe.dovetail:
        loaded(pipe, states[0])
        assert off(paint(pipe, several), expected) < NEAR
        (program,) = programs_of(pipe)
        assert micro_batches_of(program) == 2
