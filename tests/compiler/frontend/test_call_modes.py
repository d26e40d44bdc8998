"""A model that asks for the mode of a call is answered as eager is, in whatever way it asks or sets the mode itself."""

from __future__ import annotations

import contextlib
import importlib
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, is_grad_enabled, nn

import dovetail
from dovetail.compiler.errors import CallError
from dovetail.compiler.frontend.trace import trace

MODES: list[Any] = [torch.enable_grad, torch.no_grad, torch.inference_mode]


def number(is_on: Any) -> int:
    return 2 if is_on else 3


class Model(nn.Module):
    def __init__(self, way: Callable[[Any, Tensor], Any]) -> None:
        super().__init__()
        self.first, self.way, self.off, self.asks = nn.Linear(8, 8), way, False, torch.is_grad_enabled

    def forward(self, x: Tensor) -> Tensor:
        y = self.first(x)
        return y * self.way(self, y)  # type: ignore[no-any-return]


class Off(Model):
    @torch.no_grad()
    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x)


def set_by_context(model: Any, y: Tensor) -> int:
    with torch.set_grad_enabled(False):
        first = number(torch.is_grad_enabled())
    return first + 10 * number(torch.is_grad_enabled())


def set_by_call(model: Any, y: Tensor) -> int:
    before = torch.is_grad_enabled()
    torch.set_grad_enabled(False)
    try:
        first = number(torch.is_grad_enabled())
    finally:
        torch.set_grad_enabled(before)
    return first + 10 * number(torch.is_grad_enabled())


@torch.set_grad_enabled(False)
def set_by_decorator(model: Any, y: Tensor) -> int:
    return number(torch.is_grad_enabled())


def set_by_decorator_within(model: Any, y: Tensor) -> int:
    decorated: Any = torch.set_grad_enabled(False)(lambda: number(torch.is_grad_enabled()))
    return int(decorated()) + 10 * number(torch.is_grad_enabled())


def set_twice(model: Any, y: Tensor) -> int:
    with torch.no_grad():
        with torch.enable_grad():
            first = number(torch.is_grad_enabled())
        second = number(torch.is_grad_enabled())
    return first + 10 * second + 100 * number(torch.is_grad_enabled())


def set_on_a_stack(model: Any, y: Tensor) -> int:
    with contextlib.ExitStack() as stack:
        stack.enter_context(torch.set_grad_enabled(False))
        first = number(torch.is_grad_enabled())
    return first + 10 * number(torch.is_grad_enabled())


def out_of_inference(model: Any, y: Tensor) -> int:
    with torch.inference_mode(False):
        return number(torch.is_grad_enabled())


def imported(model: Any, y: Tensor) -> int:
    return number(is_grad_enabled())


def imported_of_no_effect(model: Any, y: Tensor) -> int:
    return 2 if is_grad_enabled() and model.off else 3


def an_attribute(model: Any, y: Tensor) -> int:
    return number(model.asks())


def a_value_by_and(model: Any, y: Tensor) -> int:
    value = torch.is_grad_enabled() and model.off and model.first
    return number(value is model.off and type(value) is bool)


def which_value_by_and(model: Any, y: Tensor) -> int:
    model.__dict__["off"] = None
    value = torch.is_grad_enabled() and model.off and model.first
    return number(value is None)


def a_condition_by_and(model: Any, y: Tensor) -> int:
    return 2 if torch.is_grad_enabled() and model.training and model.off else 3


def requires_grad(model: Any, y: Tensor) -> int:
    return number(y.requires_grad)


def has_a_history(model: Any, y: Tensor) -> int:
    return number(y.grad_fn is None)


WAYS = (
    set_by_context, set_by_call, set_by_decorator, set_by_decorator_within, set_twice, set_on_a_stack, out_of_inference,
    imported, imported_of_no_effect, an_attribute, a_value_by_and, which_value_by_and, a_condition_by_and,
    requires_grad, has_a_history,
)  # fmt: skip


@pytest.mark.few(quick=8)
@pytest.mark.parametrize(("kind", "way"), [*((Model, way) for way in WAYS), (Off, imported), (Off, requires_grad)])
def test_a_call_is_answered_as_eager_is_or_refused_whatever_the_modes(way: Any, kind: type[Model]) -> None:
    torch.manual_seed(0)
    module, x = kind(way).eval(), torch.randn(2, 8)
    for mode in MODES:
        compiled, taken = mode()(dovetail.compile)(module, (x,), backend="cpu"), 0
        for other in MODES:
            wanted = other()(module)(x)
            with contextlib.suppress(CallError):
                assert torch.equal(other()(compiled)(x), wanted), (mode, other)
                taken += 1
        assert taken > 0
    assert torch.is_grad_enabled()


@pytest.mark.parametrize("way", [set_by_decorator, imported_of_no_effect, a_condition_by_and])
def test_what_no_mode_of_a_call_changes_is_not_noted(way: Any) -> None:
    for mode in MODES:
        assert not mode()(trace)(Model(way).eval(), (torch.ones(2, 8),)).signature.asked


def test_a_model_without_trained_weights_may_ask_whether_its_results_require_gradients() -> None:
    module, x = Model(requires_grad).eval().requires_grad_(False), torch.randn(2, 8)
    compiled = dovetail.compile(module, (x,), backend="cpu")
    for mode in MODES:
        assert torch.equal(mode()(compiled)(x), mode()(module)(x))


@pytest.fixture
def late(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Imports a file of the user's that has taken questions out of PyTorch."""
    taken = ("torch", "is_grad_enabled"), ("torch.compiler", "is_compiling"), ("torch.cuda", "get_device_capability")
    text = "\n".join(f"from {home} import {name}" for home, name in taken)
    (tmp_path / "imported_late.py").write_text(text)
    monkeypatch.syspath_prepend(str(tmp_path))
    yield lambda: importlib.import_module("imported_late")
    sys.modules.pop("imported_late", None)


def test_a_file_that_is_imported_during_a_trace_is_told_the_truth_afterwards(late: Any) -> None:
    class Importing(Model):
        def forward(self, x: Tensor) -> Tensor:
            return self.first(x) * number(late().is_grad_enabled())  # type: ignore[no-any-return]

    module, x = Importing(requires_grad).eval(), torch.randn(2, 8)
    first = dovetail.compile(module, (x,), backend="cpu")
    with torch.no_grad():
        assert late().is_grad_enabled() is False
        assert torch.equal(module(x), module.first(x) * 3)
        second = dovetail.compile(module, (x,), backend="cpu")
        assert torch.equal(second(x), module(x))
    assert late().is_grad_enabled() is True
    assert torch.equal(first(x), module(x))


def test_a_file_that_is_imported_during_a_trace_is_told_of_other_traces_and_cards_the_truth(
    late: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    def asks(*_: Any) -> int:
        return number(late().is_compiling())

    trace(Model(asks).eval(), (torch.ones(2, 8),), kind="cuda")
    assert late().is_compiling() is False
    monkeypatch.setattr(torch.compiler, "_is_compiling_flag", True)
    assert late().is_compiling() is True
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with pytest.raises((AssertionError, RuntimeError)):
        late().get_device_capability()
