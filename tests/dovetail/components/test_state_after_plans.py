"""What a module that runs as it is keeps from call to call is eager's: the plan before a call leaves nothing there."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator
from contextvars import ContextVar
from types import SimpleNamespace
from typing import Any

import diffusers
import pytest
import torch
from diffusers.configuration_utils import ConfigMixin, register_to_config
from torch import Tensor, nn

import dovetail

from .small_pipeline import WIDTH, Pipeline

pytestmark = pytest.mark.usefixtures("clean_sims")

LAST: ContextVar[Any] = ContextVar("last", default=None)


@pytest.fixture(autouse=True)
def let_go() -> Iterator[None]:
    """Leaves no tensor of a device behind for later tests."""
    yield
    LAST.set(None)


def _count(model: Any, x: Tensor) -> Tensor:
    model.count += 1
    return x * model.count


def _buffer(model: Any, x: Tensor) -> Tensor:
    model.calls.add_(1)
    return x * model.calls


def _object(model: Any, x: Tensor) -> Tensor:
    model.box.kept = x if model.box.kept is None else model.box.kept + x
    return model.box.kept


def _items(model: Any, x: Tensor) -> Tensor:
    model.items.append(1)
    return x * len(model.items)


def _flag(model: Any, x: Tensor) -> Tensor:
    model.is_odd = not model.is_odd
    return x * 3 if model.is_odd else x


def _context(_: Any, x: Tensor) -> Tensor:
    before = LAST.get()
    LAST.set(x)
    return x if before is None else x + before.to(x.device)


def _returned(model: Any, x: Tensor) -> Any:
    _object(model, x)
    return model.box


KEEPS: list[Callable[[Any, Tensor], Tensor]] = [_count, _buffer, _object, _items, _flag, _context]


class Keeping(diffusers.ModelMixin, ConfigMixin):  # type: ignore[misc]
    """Looks at a value, so that it runs by its parts, and keeps something of each call."""

    @register_to_config
    def __init__(self, keep: Any = None) -> None:
        super().__init__()
        self.first, self.last, self.keep = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH), keep
        self.register_buffer("calls", torch.zeros(1))
        self.count, self.items, self.box, self.is_odd = 0, [], SimpleNamespace(kept=None), False

    def forward(self, x: Tensor) -> Tensor:
        if x.sum() > 1e9:
            return x
        kept: Tensor = self.keep(self, self.last(self.first(x)))
        return kept


@pytest.mark.few(5)
@pytest.mark.parametrize("backend", ["cpu", "sim0&sim1"])
@pytest.mark.parametrize("keep", KEEPS)
def test_a_plan_leaves_nothing_in_what_a_module_keeps_of_each_call(
    keep: Callable[[Any, Tensor], Tensor], backend: str
) -> None:
    torch.manual_seed(0)
    model, inputs = Keeping(keep), [torch.randn(rows, WIDTH) for rows in (4, 4, 4)]
    eager = copy.deepcopy(model)
    LAST.set(None)
    with torch.no_grad():
        expected = [eager(x) for x in inputs]
    LAST.set(None)
    pipe = Pipeline(unet=model)
    dovetail.compile_pipeline(pipe, f"unet={backend}")
    for x, wanted in zip(inputs, expected, strict=True):
        assert torch.equal(pipe(x), wanted)


@pytest.mark.parametrize("backend", ["cpu", "sim0&sim1"])
def test_an_object_that_a_module_keeps_and_returns_stays_where_the_module_has_it(backend: str) -> None:
    torch.manual_seed(0)
    model, x = Keeping(_returned), torch.randn(4, WIDTH)
    eager, pipe = copy.deepcopy(model), Pipeline(unet=model)
    dovetail.compile_pipeline(pipe, f"unet={backend}")
    for _ in range(3):
        with torch.no_grad():
            expected = eager(x).kept
        found = pipe(x).kept
        assert found.device == x.device
        assert torch.equal(found, expected)
    assert (pipe(x) is model.box) == (backend == "cpu")
