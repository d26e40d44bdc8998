"""Weights that are changed in a module after it was compiled: the next call computes with them, or refuses."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import dovetail
from dovetail.compiler.errors import NotHereError, WeightError

X = torch.linspace(-1, 1, 2 * 256).reshape(2, 256)


class Net(nn.Module):
    def __init__(self, *, by_numpy: bool = False) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(nn.Linear(256, 256) for _ in range(4))
        self.register_buffer("shift", torch.randn(256))
        self.by_numpy = by_numpy

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for block in self.blocks:
            x = torch.relu(block(x)) + x
        if self.by_numpy:
            x = torch.from_numpy(x.detach().cpu().numpy() * 1.5).to(x.device)
        return x + self.shift


def _replaced(net: Any) -> None:
    net.blocks[1].weight = nn.Parameter(torch.randn(256, 256))


def _module_replaced(net: Any) -> None:
    net.blocks[2] = nn.Linear(256, 256)


def _buffer_replaced(net: Any) -> None:
    net.shift = torch.randn(256)


def _written(net: Any) -> None:
    with torch.no_grad():
        net.blocks[3].bias.add_(1)


def _other_memory(net: Any) -> None:
    net.blocks[0].weight.data = torch.randn(256, 256)


def _loaded(net: Any) -> None:
    net.load_state_dict(Net().state_dict())


def _assigned(net: Any) -> None:
    net.load_state_dict(Net().state_dict(), assign=True)


def _tied(net: Any) -> None:
    net.blocks[1].weight = net.blocks[3].weight


CHANGES = [_replaced, _module_replaced, _buffer_replaced, _written, _other_memory, _loaded, _assigned, _tied]
WAYS: list[tuple[dict[str, Any], bool]] = [
    ({"backend": "cpu"}, False),
    ({"backend": "sim0&sim1"}, False),
    ({"backend": "sim0&sim1", "params_backend": "cpu"}, False),
    ({"backend": "sim0&sim1"}, True),
]


@pytest.fixture(autouse=True)
def _seed() -> None:
    torch.manual_seed(0)


@pytest.mark.few(12)
@pytest.mark.parametrize(("options", "by_numpy"), WAYS)
@pytest.mark.parametrize("change", CHANGES)
def test_what_is_changed_on_weights_changes_the_next_call_as_it_changes_eager(
    change: Callable[[Any], None], options: dict[str, Any], by_numpy: bool
) -> None:
    net = Net(by_numpy=by_numpy).eval()
    compiled = dovetail.compile(net, (X,), **options)
    with torch.no_grad():
        before = net(X)
        assert torch.equal(compiled(X), before)
        change(net)
        assert not torch.equal(net(X), before)
        assert torch.equal(compiled(X), net(X))
        assert torch.equal(compiled(X), net(X))


def test_a_change_before_the_first_call_counts_too() -> None:
    net = Net().eval()
    compiled = dovetail.compile(net, (X,), backend="sim0&sim1")
    _replaced(net)
    with torch.no_grad():
        assert torch.equal(compiled(X), net(X))


def test_a_program_of_a_plan_file_sees_what_is_changed_in_its_module(tmp_path: Path) -> None:
    net = Net().eval()
    dovetail.compile(net, (X,), backend="sim0&sim1").save(tmp_path / "plan.json")
    loaded = dovetail.load(tmp_path / "plan.json", net)
    with torch.no_grad():
        assert torch.equal(loaded(X), net(X))
        _replaced(net)
        assert torch.equal(loaded(X), net(X))


def test_another_dtype_is_refused_until_it_is_the_traced_one_again() -> None:
    net = Net().eval()
    compiled = dovetail.compile(net, (X,), backend="sim0&sim1")
    compiled(X)
    net.to(torch.float64)
    with pytest.raises(WeightError, match="float64"):
        compiled(X)
    net.to(torch.float32)
    with torch.no_grad():
        assert torch.equal(compiled(X), net(X))


def test_one_weight_that_became_two_is_refused() -> None:
    net = Net().eval()
    _tied(net)
    compiled = dovetail.compile(net, (X,), backend="sim0&sim1")
    compiled(X)
    _replaced(net)
    with pytest.raises(WeightError, match=r"blocks\.1\.weight and blocks\.3\.weight were one weight"):
        compiled(X)


def test_a_weight_that_is_gone_is_named() -> None:
    net: Any = Net().eval()
    compiled = dovetail.compile(net, (X,), backend="sim0&sim1")
    compiled(X)
    net.blocks[1].bias = None
    with pytest.raises(NotHereError, match=r"blocks\.1\.bias"):
        compiled(X)


def test_weights_that_stay_as_they_are_are_brought_once(monkeypatch: pytest.MonkeyPatch) -> None:
    net = Net().eval()
    compiled = dovetail.compile(net, (X,), backend="sim0&sim1")
    compiled(X)
    monkeypatch.setattr(type(compiled), "load", None)
    net.requires_grad_(False)
    compiled(X)
