"""Adapters in loops that a user writes, without a call of the pipeline: what crosses in each step, and what is seen."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from peft import LoraConfig, get_peft_model_state_dict
from peft.utils.hotswap import hotswap_adapter_from_state_dict
from torch import nn

import dovetail
from dovetail.runtime import sim
from dovetail.runtime.store.store import Store
from testbed.pipelines import tiny_pipelines

CONFIG = LoraConfig(r=4, lora_alpha=4, target_modules=["to_q", "proj_mlp"], init_lora_weights=False)
STEP = {
    "hidden_states": torch.randn(1, 16, 16), "encoder_hidden_states": torch.randn(1, 8, 32),
    "pooled_projections": torch.randn(1, 32), "timestep": torch.ones(1), "img_ids": torch.zeros(16, 3),
    "txt_ids": torch.zeros(8, 3), "guidance": None,
}  # fmt: skip


def adapted() -> Any:
    """A transformer with an adapter; two of them are equal."""
    pipe, _ = tiny_pipelines.flux()
    torch.manual_seed(0)
    pipe.transformer.add_adapter(CONFIG, "one")
    return pipe


@pytest.fixture(scope="module")
def both() -> Iterator[tuple[Any, nn.Module]]:
    """A compiled pipeline, and the same transformer in eager."""
    sim.enable()
    pipe = adapted()
    dovetail.compile_pipeline(pipe, "sim0")
    yield pipe, adapted().transformer
    KEPT.clear()
    dovetail.undo(pipe)
    sim.reset_stats(0)


@pytest.fixture
def fetched(monkeypatch: pytest.MonkeyPatch) -> Counter[str]:
    """The bytes of weights that are brought to devices from now on, by the name of each."""
    counts: Counter[str] = Counter()
    fetch = Store.fetch

    def counted(store: Store, one: Any, weight: Any, device: torch.device) -> torch.Tensor:
        counts[weight.name] += weight.nbytes
        return fetch(store, one, weight, device)

    monkeypatch.setattr(Store, "fetch", counted)
    return counts


def step(module: nn.Module, **more: Any) -> torch.Tensor:
    with torch.no_grad():
        return module(**STEP, **more, return_dict=False)[0].cpu()  # type: ignore[no-any-return]


def up_of(module: nn.Module) -> torch.Tensor:
    return module.transformer_blocks[0].attn.to_q.lora_B["one"].weight  # type: ignore[union-attr, index, no-any-return]


@pytest.mark.fifth
def test_steps_of_a_loop_bring_an_adapter_once(both: Any, fetched: Counter[str]) -> None:
    pipe, eager = both
    assert torch.equal(step(pipe.transformer), step(eager))
    fetched.clear()
    for _ in range(3):
        assert torch.equal(step(pipe.transformer), step(eager))
    assert not fetched


@pytest.mark.fifth
def test_another_scale_in_each_step_of_a_loop_brings_no_matrix_anew(both: Any, fetched: Counter[str]) -> None:
    pipe, eager = both
    step(pipe.transformer, joint_attention_kwargs={"scale": 2.0})
    fetched.clear()
    for scale in (0.5, 0.25):
        scaled = {"joint_attention_kwargs": {"scale": scale}}
        assert torch.equal(step(pipe.transformer, **scaled), step(eager, **scaled))
    assert not fetched


def hotswapped(module: nn.Module, number: int) -> None:
    torch.manual_seed(number)
    state = get_peft_model_state_dict(module, adapter_name="one")
    others = {name.replace(".weight", ".one.weight"): torch.randn_like(one) for name, one in state.items()}
    hotswap_adapter_from_state_dict(module, others, "one", LoraConfig(r=4, lora_alpha=2 * number))


def written(module: nn.Module, number: int) -> None:
    up_of(module).data.mul_(number + 1)


def cell(module: nn.Module, number: int) -> None:
    up_of(module).data[0, 0] = number


def replaced(module: nn.Module, number: int) -> None:
    up_of(module).data = up_of(module).data * (number + 1)


def in_place(module: nn.Module, number: int) -> None:
    with torch.no_grad():
        up_of(module).mul_(number + 1)


def put(module: nn.Module, number: int) -> None:
    layer: Any = module.transformer_blocks[0].attn.to_q.lora_B["one"]  # type: ignore[union-attr, index]
    layer.weight = nn.Parameter(layer.weight.detach().clone() * (number + 1))


def kept(module: nn.Module, number: int) -> None:
    """Writes into what was asked for before the last step."""
    held = KEPT.setdefault(module, up_of(module).data)
    step(module)
    held.fill_(number)


KEPT: dict[nn.Module, torch.Tensor] = {}


@pytest.mark.fifth
@pytest.mark.parametrize(
    "change", [hotswapped, written, cell, replaced, in_place, put, kept], ids=lambda one: one.__name__
)
def test_a_loop_sees_what_was_written_into_an_adapter_whichever_way(
    change: Callable[[nn.Module, int], None], both: Any, fetched: Counter[str]
) -> None:
    pipe, eager = both
    before = step(pipe.transformer)
    for number in (1, 2):
        for module in (pipe.transformer, eager):
            change(module, number)
        found = step(pipe.transformer)
        assert torch.equal(found, step(eager))
        assert not torch.equal(found, before)
        before = found
    fetched.clear()
    step(pipe.transformer)
    assert not fetched


@pytest.mark.fifth
def test_an_adapter_made_in_inference_mode_is_right_in_every_step() -> None:
    eager, pipe = adapted().transformer, adapted()
    for module in (eager, pipe.transformer):
        with torch.inference_mode():
            torch.manual_seed(3)
            layer: Any = module.transformer_blocks[0].attn.to_q.lora_B["one"]
            layer.weight = nn.Parameter(torch.randn_like(layer.weight), requires_grad=False)
    with dovetail.compile_pipeline(pipe, "sim0").dovetail:
        for _ in range(2):
            assert torch.equal(step(pipe.transformer), step(eager))
            for module in (eager, pipe.transformer):
                with torch.inference_mode():
                    up_of(module).mul_(2)


@pytest.mark.fifth
def test_adapters_of_an_undone_pipeline_are_ordinary_parameters() -> None:
    pipe = adapted()
    with dovetail.compile_pipeline(pipe, "sim0").dovetail:
        step(pipe.transformer)
        assert isinstance(up_of(pipe.transformer), nn.Parameter)
    assert {type(one) for one in pipe.transformer.parameters()} == {nn.Parameter}
