"""What an op does with a stand-in beside another tensor, or in the place of its own form."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy
import pytest
import torch
from safetensors.torch import save_file
from torch import nn

from dovetail.compiler.errors import UsageError
from dovetail.compiler.spec.residency import Residency
from dovetail.runtime import sim
from dovetail.runtime.store.origin import HOST
from dovetail.runtime.store.origins import origins_of
from dovetail.runtime.store.store import Store
from dovetail.weights.files import open_weights

START = torch.arange(4096.0).reshape(64, 64)


@pytest.fixture
def held(tmp_path: Path) -> tuple[nn.Linear, Store]:
    """A layer whose weight rests in a file, and what holds it."""
    save_file({"weight": START, "bias": torch.zeros(64)}, tmp_path / "layer.safetensors")
    with torch.device("meta"):
        layer = nn.Linear(64, 64)
    store = Store()
    store.add(layer, origins_of(open_weights(tmp_path / "layer.safetensors")), Residency.DISK)
    return layer, store


def test_a_look_in_the_form_of_another_weight_without_data_is_a_look(held: tuple[nn.Linear, Store]) -> None:
    layer, _ = held
    with torch.no_grad():
        layer.weight.view_as(layer.weight).mul_(3)
    assert torch.equal(layer.weight, START * 3)


def test_a_look_in_the_form_of_a_tensor_with_data_is_a_look(held: tuple[nn.Linear, Store]) -> None:
    layer, _ = held
    with torch.no_grad():
        layer.weight.view_as(torch.ones(64, 64)).mul_(3)
    assert torch.equal(layer.weight, START * 3)
    assert nn.init.orthogonal_(layer.weight).shape == START.shape


def test_no_op_gives_a_weight_another_form_through_what_was_detached_from_it(held: tuple[nn.Linear, Store]) -> None:
    layer, _ = held
    for give in (torch.Tensor.t_, lambda one: one.unsqueeze_(0), lambda one: one.transpose_(0, 1)):
        with pytest.raises(UsageError, match="cannot give another form"):
            give(layer.weight.detach())
    assert torch.equal(layer.weight, START)


def test_a_number_on_a_device_is_taken(held: tuple[nn.Linear, Store]) -> None:
    layer, _ = held
    sim.enable()
    with torch.no_grad():
        torch._foreach_mul_([layer.weight], torch.tensor(3.0, device="sim:0"))
    assert torch.equal(layer.weight.cpu(), START * 3)


def test_a_weight_that_is_normed_is_known_before_anybody_looks(held: tuple[nn.Linear, Store]) -> None:
    layer, store = held
    nn.utils.parametrizations.weight_norm(layer)
    found = store.of_module(layer)
    assert found.keys() == dict(layer.named_parameters()).keys()
    assert torch.allclose(layer.weight[1:], START[1:])


def test_what_is_written_to_the_memory_of_a_weight_that_rests_on_disk_stays(held: tuple[nn.Linear, Store]) -> None:
    layer, store = held
    layer.weight.untyped_storage().fill_(0)
    store.rest(store.of(layer.weight), HOST)
    assert torch.equal(layer.weight, torch.zeros(64, 64))


def test_data_that_comes_into_the_object_of_a_weight_is_the_weights(held: tuple[nn.Linear, Store]) -> None:
    layer, store = held
    torch.utils.swap_tensors(layer.weight, nn.Parameter(torch.ones(64, 64)))
    store.survey()
    store.rest(store.of(layer.weight), HOST)
    assert torch.equal(store.of(layer.weight).whole(HOST), torch.ones(64, 64))
    assert torch.equal(layer.weight, torch.ones(64, 64))


@pytest.mark.parametrize("way", [numpy.asarray, lambda w: w.numpy()])
def test_what_requires_a_gradient_gives_no_array_and_makes_no_data(
    way: Callable[[Any], Any], held: tuple[nn.Linear, Store]
) -> None:
    layer, store = held
    with pytest.raises(RuntimeError, match="requires grad"):
        way(layer.weight)
    assert not store.of(layer.weight).is_here


@pytest.mark.parametrize("fused", [{}, {"foreach": True}, {"fused": True}], ids=["", "foreach", "fused"])
def test_an_optimizer_that_was_made_over_weights_without_data_steps_as_in_eager(
    fused: dict[str, bool], held: tuple[nn.Linear, Store]
) -> None:
    layer, _ = held
    plain = nn.Linear(64, 64)
    plain.load_state_dict(layer.state_dict())
    for one in (layer, plain):
        optimizer = torch.optim.AdamW(one.parameters(), lr=0.1, **fused)  # type: ignore[arg-type]
        for _ in range(2):
            for parameter in one.parameters():
                parameter.grad = torch.ones(parameter.shape, device=parameter.device)
            optimizer.step()
    assert torch.equal(layer.weight, plain.weight)
    assert torch.equal(layer.bias, plain.bias)
