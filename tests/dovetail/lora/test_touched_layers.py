"""What somebody does to a layer that an adapter wraps, to its adapter, or to peft's class: the results are eager's."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
from peft import LoraConfig, inject_adapter_in_model
from peft.tuners.lora.layer import Linear
from torch import nn
from torch.nn.utils.parametrize import register_parametrization, remove_parametrizations

import dovetail
from tests.dovetail.components.small_pipeline import WIDTH, Block, Model, Numpy, Pipeline

Undo = Callable[[], None]


def _after(_: nn.Module, args: Any, result: torch.Tensor) -> torch.Tensor:
    return result * 2


def _before(_: nn.Module, args: Any) -> Any:
    return (args[0] * 2,)


def _hook(layer: Any) -> Undo:
    return layer.register_forward_hook(_after).remove  # type: ignore[no-any-return]


def _pre_hook(layer: Any) -> Undo:
    return layer.register_forward_pre_hook(_before).remove  # type: ignore[no-any-return]


def _hook_of_base(layer: Any) -> Undo:
    return layer.base_layer.register_forward_hook(_after).remove  # type: ignore[no-any-return]


def _hook_of_matrix(layer: Any) -> Undo:
    return layer.lora_A["one"].register_forward_hook(_after).remove  # type: ignore[no-any-return]


def _function(layer: Any) -> Undo:
    own = layer.forward
    layer.forward = lambda x: own(x) * 0.5
    return lambda: setattr(layer, "forward", own)


def _dropout(layer: Any) -> Undo:
    own = layer.lora_dropout["one"]
    layer.lora_dropout["one"] = nn.Tanh()
    return lambda: layer.lora_dropout.update({"one": own})


def _class(layer: Any) -> Undo:
    class Twice(Linear):  # type: ignore[misc]
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            result: torch.Tensor = super().forward(x) * 2
            return result

    layer.__class__ = Twice
    return lambda: setattr(layer, "__class__", Linear)


def _base(layer: Any) -> Undo:
    own = layer.base_layer
    layer.base_layer = nn.Linear(WIDTH, 2 * WIDTH)
    return lambda: setattr(layer, "base_layer", own)


class Half(nn.Module):
    """Halves a weight."""

    def forward(self, weight: torch.Tensor) -> torch.Tensor:
        return weight / 2

    def right_inverse(self, weight: torch.Tensor) -> torch.Tensor:
        return weight * 1


def _parametrized(layer: Any) -> Undo:
    register_parametrization(layer.lora_B["one"], "weight", Half())

    def undo() -> None:
        remove_parametrizations(layer.lora_B["one"], "weight", leave_parametrized=False)

    return undo


CHANGES = (
    _hook, _pre_hook, _hook_of_base, _hook_of_matrix, _function, _dropout, _class, _base, _parametrized,
)  # fmt: skip


def _pair(kind: type[Block] = Block) -> tuple[Model, Pipeline, torch.Tensor]:
    torch.manual_seed(0)
    model = Model(kind).eval()
    model.blocks = model.blocks[:1]
    pipe = Pipeline(copy.deepcopy(model))
    dovetail.compile_pipeline(pipe, "diffusion=sim0")
    for one in (model, pipe.unet):
        torch.manual_seed(1)
        config = LoraConfig(r=2, target_modules=["up", "down"], init_lora_weights=False)
        inject_adapter_in_model(config, one, adapter_name="one")
    return model, pipe, torch.randn(2, WIDTH)


def _do(change: Callable[[Any], Undo], *models: Any) -> list[Undo]:
    undo = []
    for model in models:
        torch.manual_seed(2)
        undo.append(change(model.blocks[0].up))
    return undo


@pytest.mark.fifth
@pytest.mark.few(quick=5)
@pytest.mark.parametrize(("change", "kind"), [*((one, Block) for one in CHANGES), (_class, Numpy), (_base, Numpy)])
@torch.no_grad()
def test_what_is_done_to_a_wrapped_layer_counts_at_the_next_call_until_it_is_undone(
    change: Callable[[Any], Undo], kind: type[Block]
) -> None:
    model, pipe, x = _pair(kind)
    before = model(x)
    assert torch.equal(pipe(x), before)
    undo = _do(change, model, pipe.unet)
    assert torch.equal(pipe(x), model(x))
    assert not torch.equal(model(x), before)
    for one in undo:
        one()
    assert torch.equal(pipe(x), before)


@pytest.mark.fifth
@torch.no_grad()
def test_the_scale_of_an_adapter_on_a_layer_with_a_hook_counts() -> None:
    model, pipe, x = _pair()
    _do(_hook, model, pipe.unet)
    for scale in (1.0, 3.0):
        for one in (model, pipe.unet):
            one.blocks[0].up.set_scale("one", scale)
        assert torch.equal(pipe(x), model(x))


@pytest.mark.parametrize("change", [_hook_of_matrix, _function])
@torch.no_grad()
def test_what_was_done_to_a_wrapped_layer_before_the_first_call_counts(change: Callable[[Any], Undo]) -> None:
    model, pipe, x = _pair()
    _do(change, model, pipe.unet)
    assert torch.equal(pipe(x), model(x))


@torch.no_grad()
def test_a_function_in_the_place_of_that_of_the_class_of_wrappers_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    model, pipe, x = _pair()
    before, own = model(x), Linear.forward
    assert torch.equal(pipe(x), before)
    with monkeypatch.context() as patch:
        patch.setattr(Linear, "forward", lambda self, x: own(self, x) * 2)
        assert torch.equal(pipe(x), model(x))
        assert not torch.equal(model(x), before)
    assert torch.equal(pipe(x), before)


@torch.no_grad()
def test_adapters_of_a_layer_with_a_hook_can_be_merged() -> None:
    model, pipe, x = _pair()
    _do(_hook, model, pipe.unet)
    assert torch.equal(pipe(x), model(x))
    for one in (model, pipe.unet):
        one.blocks[0].up.merge()
    assert torch.equal(pipe(x), model(x))
    for one in (model, pipe.unet):
        one.blocks[0].up.unmerge()
    assert torch.allclose(pipe(x), model(x), atol=1e-6)
