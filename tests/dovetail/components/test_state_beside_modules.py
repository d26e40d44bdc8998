"""What a model computes with may lie beside its modules' weights: in attributes, classes, and hooks of all modules."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import dovetail

from .small_pipeline import WIDTH, Model, Pipeline


class Settings(Model):
    """A model that is set in many ways."""

    amount = 1.0

    def __init__(self) -> None:
        super().__init__()
        self.factor = torch.tensor(2.0)
        self.table = np.array([3.0])
        self.nested = {"a": {"b": {"c": {"d": {"e": [1.0]}}}}}

    def forward(self, x: torch.Tensor, zero: float = 0.0) -> torch.Tensor:
        x = super().forward(x) * self.factor * float(self.table[0]) * self.nested["a"]["b"]["c"]["d"]["e"][0]
        return self.times(x) * type(self).amount + zero

    def times(self, x: torch.Tensor) -> torch.Tensor:
        return x


@pytest.fixture(autouse=True)
def _class_stays(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Settings, "amount", 1.0)
    monkeypatch.setattr(Settings, "times", Settings.times)


def _class_amount(model: Settings) -> None:
    type(model).amount = 5.0


def _class_function(model: Settings) -> None:
    type(model).times = lambda self, x: x * 7  # type: ignore[method-assign, assignment]


def _tensor(model: Settings) -> None:
    model.factor.mul_(2)


def _array(model: Settings) -> None:
    model.table[0] = 5


def _nested(model: Settings) -> None:
    model.nested["a"]["b"]["c"]["d"]["e"][0] = 7.0


CHANGES = (_class_amount, _class_function, _tensor, _array, _nested)


def _pair() -> tuple[Settings, Pipeline, torch.Tensor]:
    torch.manual_seed(0)
    model = Settings().eval()
    pipe = Pipeline(copy.deepcopy(model))
    dovetail.compile_pipeline(pipe, "diffusion=sim0&sim1")
    return model, pipe, torch.randn(2, WIDTH)


@pytest.mark.fifth
@pytest.mark.parametrize("change", CHANGES)
def test_what_is_changed_beside_the_weights_changes_the_next_call_as_it_changes_eager(
    change: Callable[[Settings], None],
) -> None:
    model, pipe, x = _pair()
    before = pipe(x)
    change(model)
    change(pipe.unet)
    with torch.no_grad():
        want = model(x)
    assert torch.equal(pipe(x), want)
    assert not torch.equal(before, want)


def test_a_hook_of_all_modules_runs_for_each_and_its_removal_finds_the_program_again() -> None:
    model, pipe, x = _pair()
    before = pipe(x)
    programs = list(pipe._dovetail.components["unet"].programs)

    def double(module: nn.Module, _: Any, out: torch.Tensor) -> torch.Tensor | None:
        return out * 2 if isinstance(module, nn.Linear) else None

    hook = nn.modules.module.register_module_forward_hook(double)
    try:
        with torch.no_grad():
            want = model(x)
        assert torch.equal(pipe(x), want)
    finally:
        hook.remove()
    assert torch.equal(pipe(x), before)
    assert pipe._dovetail.components["unet"].programs == programs


def test_zero_and_minus_zero_are_two_arguments() -> None:
    model, pipe, x = _pair()
    with torch.no_grad():
        for one in (model, pipe.unet):
            one.factor.zero_()
        assert not torch.signbit(pipe(x, 0.0)).any()
        want = model(x, -0.0)
        assert torch.equal(torch.signbit(pipe(x, -0.0)), torch.signbit(want))
        assert torch.signbit(want).any()
