"""A model that asks whether it is being traced is answered as eager answers, where it can be traced that way."""

from __future__ import annotations

import functools
import logging
from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

import dovetail
from dovetail.cache import traces
from dovetail.compiler.errors import TraceError
from dovetail.compiler.frontend.trace import trace
from testbed.results import fakes_within

OWN = torch.compiler.is_compiling, torch.compiler.is_exporting


class Branching(nn.Module):
    def __init__(self, asks: Callable[[], bool]) -> None:
        super().__init__()
        self.linear = nn.Linear(4, 4)
        self.asks = asks

    def forward(self, x: Tensor) -> Tensor:
        return self.linear(x) + 1 if self.asks() else self.linear(x)


class Checking(nn.Module):
    """Looks at a value unless it is traced, as libraries check masks."""

    def forward(self, x: Tensor) -> Tensor:
        return x * 2 if not torch.compiler.is_compiling() and x.sum() > 100 else x + 1


class Insisting(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        torch.compiler.is_compiling()
        return x * 2 if x.sum() > 100 else x + 1


@pytest.mark.parametrize(
    "asks",
    [
        lambda: torch.compiler.is_compiling(),
        lambda: torch.compiler.is_exporting(),
        lambda: torch._utils.is_compiling(),
        lambda: torch.jit.is_tracing(),
    ],
    ids=["compiling", "exporting", "of old", "jit"],
)
def test_a_model_that_branches_on_being_traced_computes_what_eager_does(
    asks: Callable[[], bool], caplog: pytest.LogCaptureFixture
) -> None:
    module, x = Branching(asks).eval(), torch.randn(2, 4)
    with torch.no_grad():
        assert torch.equal(dovetail.compile(module, (x,), backend="cpu")(x), module(x))
    assert not caplog.records
    assert (torch.compiler.is_compiling, torch.compiler.is_exporting) == OWN


def test_a_model_that_can_only_be_traced_if_it_is_told_so_is_named_with_the_line_that_asks(
    caplog: pytest.LogCaptureFixture,
) -> None:
    with caplog.at_level(logging.WARNING):
        trace(Checking(), (torch.ones(2),))
    (record,) = caplog.records
    assert record.getMessage().startswith(f"Checking asks whether it is being traced ({__file__}:")


def test_a_model_that_cannot_be_traced_either_way_is_refused_as_ever(caplog: pytest.LogCaptureFixture) -> None:
    with pytest.raises(TraceError, match="Insisting cannot be traced past"):
        trace(Insisting(), (torch.ones(2),))
    assert not caplog.records
    assert (torch.compiler.is_compiling, torch.compiler.is_exporting) == OWN


class Capable(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x * 2 if x.is_cuda and torch.cuda.get_device_capability(x.device) >= (8, 0) else x


@pytest.mark.skipif(torch.cuda.is_available(), reason="the card that is here answers for itself")
def test_a_model_that_is_traced_for_a_card_that_is_not_here_may_ask_what_it_can_do() -> None:
    assert "mul" in str(trace(Capable(), (torch.ones(2),), kind="cuda").graph)


def _kept_unless_traced(function: Callable[..., Tensor]) -> Callable[..., Tensor]:
    kept = functools.lru_cache(function)
    return lambda *args: function(*args) if torch.compiler.is_compiling() else kept(*args)


class Tabled(nn.Module):
    @_kept_unless_traced
    def table(self, size: int) -> Tensor:
        return torch.arange(size).float()

    def forward(self, x: Tensor) -> Tensor:
        return x + self.table(x.shape[0])


def test_a_method_that_keeps_its_answers_unless_it_is_traced_keeps_none_of_the_trace() -> None:
    module = Tabled()
    compiled = dovetail.compile(module, (torch.ones(3),), backend="cpu")
    assert not fakes_within(module(torch.ones(3)))
    assert torch.equal(compiled(torch.ones(3)), module(torch.ones(3)))


class Skipping(nn.Module):
    """Leaves a mask out where it hides nothing, as transformers does where tensors have values."""

    def __init__(self, asks: Callable[[Tensor], bool]) -> None:
        super().__init__()
        self.asks = asks

    def forward(self, x: Tensor, mask: Tensor) -> Tensor:
        return x if not self.asks(mask) and mask.all() else x * mask


def is_fake(tensor: Tensor) -> bool:
    return isinstance(tensor, torch._subclasses.FakeTensor)


def is_fake_by_import(tensor: Tensor) -> bool:
    from torch._subclasses.fake_tensor import FakeTensor

    return isinstance(tensor, FakeTensor)


@pytest.mark.parametrize("asks", [is_fake, is_fake_by_import])
def test_a_model_that_looks_at_values_unless_tensors_are_fake_is_named(
    asks: Callable[[Tensor], bool], caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(traces, "_told", set())
    module, x = Skipping(asks), torch.randn(4)
    with caplog.at_level(logging.INFO, "dovetail.cache.traces"):
        compiled = dovetail.compile(module, (x, torch.ones(4, dtype=torch.bool)), backend="cpu")
    assert "Skipping looks at values of its inputs unless it is being traced" in caplog.text
    for mask in (torch.ones(4, dtype=torch.bool), torch.tensor([True, False, True, True])):
        assert torch.equal(compiled(x, mask), module(x, mask))
    assert type(torch._subclasses) is type(torch)


@pytest.mark.parametrize("asks", [is_fake, is_fake_by_import])
def test_a_model_that_asks_whether_a_tensor_is_fake_computes_what_eager_does(
    asks: Callable[[Tensor], bool], caplog: pytest.LogCaptureFixture
) -> None:
    class Otherwise(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return x + 1 if asks(x) else x * 2

    x = torch.randn(4)
    assert torch.equal(dovetail.compile(Otherwise(), (x,), backend="cpu")(x), x * 2)
    assert not caplog.records
