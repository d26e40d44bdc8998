"""Adapters that are merged into weights: at once, into what the module holds, all of them or none, and out again."""

from __future__ import annotations

import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import dovetail
from dovetail.compiler.errors import UsageError
from dovetail.lora.merged_weights import MergedWeights
from dovetail.runtime import sim
from testbed.pipelines import tiny_pipelines
from tests.cases import slow_but

from .tiny_loras import save_lora

PLACES = {
    "device": {"backend": "diffusion=sim0,te=cpu,vae=cpu"},
    "row": {"backend": "diffusion=sim0&sim1,te=cpu,vae=cpu", "split_mode": "diffusion=row"},
    "cpu": {"backend": "diffusion=sim0,te=cpu,vae=cpu", "params_backend": "diffusion=cpu"},
    "disk": {"backend": "diffusion=sim0,te=cpu,vae=cpu", "params_backend": "diffusion=disk"},
}
PARTS = ["transformer"]
Q = "transformer_blocks.0.attn.to_q"


pytestmark = pytest.mark.usefixtures("sims")


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path, Path]:
    """A saved pipeline, whose weights may be split by rows, and two LoRAs for it."""
    folder = tmp_path_factory.mktemp("merged")
    pipe, _ = tiny_pipelines.wide_flux()
    pipe.save_pretrained(folder)
    first, second = (
        save_lora(pipe, folder / f"lora{seed}", seed, parts=("transformer",), target_modules=["to_q", "proj_mlp"])
        for seed in (1, 2)
    )
    return folder, first, second


def eager_of(saved: tuple[Path, Path, Path], dtype: torch.dtype = torch.float32) -> Any:
    pipe, _ = tiny_pipelines.wide_flux()
    given = type(pipe).from_pretrained(saved[0], torch_dtype=dtype)
    for one in given.transformer.parameters():
        one.data = one.data.clone()
    return loaded_with(given, saved)


def loaded_with(pipe: Any, saved: tuple[Path, Path, Path]) -> Any:
    pipe.set_progress_bar_config(disable=True)
    for path, name in zip(saved[1:], ("one", "two"), strict=True):
        pipe.load_lora_weights(path, adapter_name=name)
    pipe.set_adapters(["one", "two"], [0.7, -0.3])
    return pipe


def made(saved: tuple[Path, Path, Path], place: str, *, loads: bool = True, paints: bool = True) -> Any:
    """A pipeline with two LoRAs, loaded or compiled, which has painted or not."""
    if loads:
        pipe = dovetail.load_pipeline(saved[0], **PLACES[place])
    else:
        pipe, _ = tiny_pipelines.wide_flux()
        dovetail.compile_pipeline(pipe, **PLACES[place])
    if paints:
        paint(pipe)
    return loaded_with(pipe, saved)


def complete(saved: tuple[Path, Path, Path]) -> Any:
    """A loaded pipeline with two LoRAs whose weights were brought to their device, though nothing was compiled."""
    pipe = made(saved, "device", paints=False)
    component = pipe.dovetail.components["transformer"]
    for one in component.view.weights():
        if ".lora_" not in one.name:
            component.view.store.place(one, component.devices[0])
    return pipe


def paint(pipe: Any) -> torch.Tensor:
    _, call = tiny_pipelines.wide_flux()
    return tiny_pipelines.paint(pipe, {**call, "num_inference_steps": 1}, "latent").cpu()  # type: ignore[no-any-return]


def weights(pipe: Any) -> dict[str, torch.Tensor]:
    """All weights that are no adapter's, as the module shows them."""
    shown = ((name, tensor) for name, tensor in pipe.transformer.state_dict().items() if ".lora_" not in name)
    return {name.replace(".base_layer", ""): tensor.detach().cpu().clone() for name, tensor in shown}


def agree(pipe: Any, eager: Any) -> bool:
    here, there = weights(pipe), weights(eager)
    return here.keys() == there.keys() and all(torch.equal(here[name], there[name]) for name in there)


def layer(pipe: Any) -> Any:
    found = pipe.transformer.get_submodule(Q)
    return getattr(found, "base_layer", found)


def in_place(pipe: Any) -> None:
    with torch.no_grad():
        layer(pipe).weight.mul_(-3)


def through_data(pipe: Any) -> None:
    layer(pipe).weight.data.mul_(-3)


def replaced(pipe: Any) -> None:
    layer(pipe).weight = nn.Parameter(layer(pipe).weight.detach().clone() * -3)


CASES = [(place, loads, paints) for place in PLACES for loads in (True, False) for paints in (True, False)]
CASES = [(place, loads, paints) for place, loads, paints in CASES if loads or place != "disk"]
QUICK = [("disk", True, False), ("row", True, True)]


@pytest.mark.slow
@pytest.mark.few(1)
@pytest.mark.parametrize(("place", "loads", "paints"), slow_but(QUICK, CASES))
def test_what_is_merged_is_there_when_the_call_returns_and_out_again_to_the_bit(
    place: str, loads: bool, paints: bool, saved: Any
) -> None:
    pipe, eager = made(saved, place, loads=loads, paints=paints), eager_of(saved)
    before = weights(pipe)
    for one in (pipe, eager):
        one.fuse_lora(components=PARTS, lora_scale=0.5)
    assert agree(pipe, eager)
    if place != "row":
        assert torch.equal(paint(pipe), paint(eager))
        assert agree(pipe, eager)
    pipe.unfuse_lora(components=PARTS)
    after = weights(pipe)
    assert all(torch.equal(after[name], before[name]) for name in before)


@pytest.mark.fifth
@pytest.mark.few(2)
@pytest.mark.parametrize("change", [in_place, through_data, replaced], ids=lambda one: one.__name__)
def test_the_base_of_a_merge_is_what_the_module_holds(change: Callable[[Any], None], saved: Any) -> None:
    pipe, eager = complete(saved), eager_of(saved)
    for one in (pipe, eager):
        change(one)
    before = weights(pipe)
    for one in (pipe, eager):
        one.fuse_lora(components=PARTS)
    assert agree(pipe, eager)
    pipe.unfuse_lora(components=PARTS)
    assert torch.equal(weights(pipe)[f"{Q}.weight"], before[f"{Q}.weight"])


@pytest.mark.fifth
@pytest.mark.few(2)
@pytest.mark.parametrize("change", [in_place, through_data, replaced], ids=lambda one: one.__name__)
def test_a_change_after_a_merge_is_to_what_was_merged_and_stays_when_that_is_taken_out(
    change: Callable[[Any], None], saved: Any
) -> None:
    pipe, eager = complete(saved), eager_of(saved)
    for one in (pipe, eager):
        one.fuse_lora(components=PARTS)
        change(one)
    assert agree(pipe, eager)
    for one in (pipe, eager):
        one.unfuse_lora(components=PARTS)
    here, there = weights(pipe), weights(eager)
    assert torch.equal(here[f"{Q}.weight"], there[f"{Q}.weight"])
    bare = weights(tiny_pipelines.wide_flux()[0])
    assert all(torch.equal(here[name], bare[name]) for name in bare if not name.startswith(f"{Q}."))


@pytest.mark.fifth
def test_what_is_merged_one_after_the_other_is_taken_out_together(saved: Any) -> None:
    pipe, eager = complete(saved), eager_of(saved)
    before = weights(pipe)
    for name in ("one", "two"):
        for one in (pipe, eager):
            one.fuse_lora(components=PARTS, adapter_names=[name])
        assert agree(pipe, eager)
    pipe.unfuse_lora(components=PARTS)
    assert all(torch.equal(tensor, before[name]) for name, tensor in weights(pipe).items())


@pytest.mark.parametrize("place", ["device", "disk"])
def test_a_merge_that_fails_on_the_way_leaves_nothing_merged(place: str, saved: Any) -> None:
    pipe = complete(saved) if place == "device" else made(saved, place, paints=False)
    last = pipe.transformer.single_transformer_blocks[-1].proj_mlp
    whole = last.lora_A["two"].weight.detach().clone()
    last.lora_A["two"].weight.data[0, 0] = float("nan")
    before, scales = weights(pipe), dict(last.scaling)
    with pytest.raises(ValueError, match="NaNs detected"):
        pipe.fuse_lora(components=PARTS, lora_scale=0.5, safe_fusing=True)
    after = weights(pipe)
    assert all(torch.equal(after[name], before[name]) for name in before)
    assert not any(getattr(one, "merged_adapters", ()) for one in pipe.transformer.modules())
    assert last.scaling == scales
    assert pipe.num_fused_loras == 0
    last.lora_A["two"].weight.data.copy_(whole)
    eager = eager_of(saved)
    for one in (pipe, eager):
        one.fuse_lora(components=PARTS, safe_fusing=True)
    assert agree(pipe, eager)


@pytest.mark.fifth
@pytest.mark.parametrize("place", ["device", "disk"])
def test_an_adapter_that_is_loaded_beside_merged_ones_takes_these_out_as_in_eager(place: str, saved: Any) -> None:
    """As peft does, which warns."""
    pipe, eager = complete(saved) if place == "device" else made(saved, place, paints=False), eager_of(saved)
    before = weights(pipe)
    for one in (pipe, eager):
        one.fuse_lora(components=PARTS)
        with pytest.warns(UserWarning, match="Unmerging the model first"):
            one.load_lora_weights(saved[1], adapter_name="three")
        assert not any(getattr(part, "merged_adapters", ()) for part in one.transformer.modules())
    after, rounded = weights(pipe), weights(eager)
    assert all(torch.equal(after[name], before[name]) for name in before)
    assert all(torch.allclose(after[name], rounded[name], atol=1e-6) for name in before)
    with pytest.raises(ValueError, match="already in use"):
        pipe.load_lora_weights(saved[1], adapter_name="three")
    pipe.unfuse_lora(components=PARTS)
    assert all(torch.equal(tensor, before[name]) for name, tensor in weights(pipe).items())


@pytest.mark.usefixtures("heeding_interrupts")
def test_an_interrupt_of_a_merge_leaves_nothing_merged(saved: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    pipe = complete(saved)
    before, write, turn = weights(pipe), MergedWeights._write, iter(range(10**6))

    def interrupted(self: MergedWeights, one: Any, numbers: torch.Tensor) -> None:
        write(self, one, numbers)
        if next(turn) == 2:
            signal.raise_signal(signal.SIGINT)

    monkeypatch.setattr(MergedWeights, "_write", interrupted)
    with pytest.raises(KeyboardInterrupt):
        pipe.fuse_lora(components=PARTS)
    after = weights(pipe)
    assert all(torch.equal(after[name], before[name]) for name in before)
    assert not any(getattr(one, "merged_adapters", ()) for one in pipe.transformer.modules())


@pytest.mark.fifth
def test_what_fuse_has_written_in_half_precision_is_what_peft_writes(saved: Any) -> None:
    eager = eager_of(saved, torch.bfloat16)
    pipe = loaded_with(dovetail.load_pipeline(saved[0], dtype=torch.bfloat16, **PLACES["device"]), saved)
    for one in (pipe, eager):
        one.fuse_lora(components=PARTS)
    assert agree(pipe, eager)
    compiled = eager_of(saved, torch.bfloat16)
    dovetail.compile_pipeline(compiled, **PLACES["device"])
    compiled.fuse_lora(components=PARTS)
    assert agree(compiled, eager)


def test_a_merge_takes_no_memory_of_the_device(saved: Any) -> None:
    pipe = complete(saved)
    assert layer(pipe).weight.device.type == "sim"
    before = sim.stats(0).in_use
    held = layer(pipe).weight
    pipe.fuse_lora(components=PARTS)
    assert sim.stats(0).in_use <= before
    assert layer(pipe).weight is held


def test_an_adapter_written_after_it_was_merged_changes_nothing_merged(saved: Any) -> None:
    pipe, eager = made(saved, "disk", paints=False), eager_of(saved)
    for one in (pipe, eager):
        one.fuse_lora(components=PARTS)
        for name, parameter in one.transformer.named_parameters():
            if ".lora_" in name:
                parameter.data.mul_(5)
    assert agree(pipe, eager)


def test_a_bias_of_an_adapter_has_no_place_beside_a_matmul_without_one(saved: Any) -> None:
    from peft import LoraConfig

    pipe, _ = tiny_pipelines.wide_flux()
    q = pipe.transformer.get_submodule(Q)
    q.bias = None
    with dovetail.compile_pipeline(pipe, **PLACES["device"]).dovetail:
        config = LoraConfig(r=2, target_modules=[Q], lora_bias=True, init_lora_weights=False)
        pipe.transformer.add_adapter(config, "one")
        before = q.weight.detach().cpu().clone()
        with pytest.raises(UsageError, match="has a bias"):
            pipe.fuse_lora(components=PARTS)
        assert torch.equal(layer(pipe).weight.detach().cpu(), before)
