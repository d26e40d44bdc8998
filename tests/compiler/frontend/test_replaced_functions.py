"""A function of PyTorch that somebody has replaced by one which calls it is applied once, as in eager."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import dovetail

CALLS: dict[str, Callable[[Tensor], Tensor]] = {
    "silu": lambda x: F.silu(x),
    "layer_norm": lambda x: F.layer_norm(x, (8,)),
    "group_norm": lambda x: F.group_norm(x, 2),
    "interpolate": lambda x: F.interpolate(x, scale_factor=2),
    "softmax": lambda x: F.softmax(x, -1),
    "dropout": lambda x: F.dropout(x, 0.5, False),
    "gelu": lambda x: F.gelu(x),
    "normalize": lambda x: F.normalize(x),
    "max_pool2d": lambda x: F.max_pool2d(x, 2),
    "scaled_dot_product_attention": lambda x: F.scaled_dot_product_attention(x, x, x),
}
METHODS: dict[str, Callable[[Tensor], Tensor]] = {
    "norm": lambda x: x.norm(),
    "unflatten": lambda x: x.unflatten(1, (2, 2)),
    "mul": lambda x: x.mul(3),
    "__add__": lambda x: x + 3,
}


class Calling(nn.Module):
    def __init__(self, function: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        self.function, self.scale = function, nn.Parameter(torch.tensor(2.0))

    def forward(self, x: Tensor) -> Tensor:
        return self.function(x) * self.scale


def halved(monkeypatch: pytest.MonkeyPatch, home: Any, name: str) -> None:
    original = getattr(home, name)

    def replacement(*args: Any, **kwargs: Any) -> Any:
        return original(*args, **kwargs) / 2

    monkeypatch.setattr(home, name, replacement)


def agrees(function: Callable[[Tensor], Tensor]) -> bool:
    module, x = Calling(function).eval(), torch.randn(2, 4, 8, 8)
    with torch.no_grad():
        return torch.equal(dovetail.compile(module, (x,), backend="sim0")(x), module(x))


@pytest.mark.parametrize("name", CALLS)
def test_a_replaced_function_is_applied_once(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    halved(monkeypatch, F, name)
    assert agrees(CALLS[name])


@pytest.mark.parametrize("name", METHODS)
def test_a_replaced_method_of_tensors_is_applied_once(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    halved(monkeypatch, torch.Tensor, name)
    assert agrees(METHODS[name])


def test_one_that_replaces_a_replacement_is_applied_once(monkeypatch: pytest.MonkeyPatch) -> None:
    halved(monkeypatch, F, "silu")
    halved(monkeypatch, F, "silu")
    assert agrees(CALLS["silu"])
