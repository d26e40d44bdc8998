"""What a model reads of context variables and of variables of a thread: the next call computes with what they hold."""

from __future__ import annotations

import copy
import threading
from collections.abc import Callable
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import Any

import pytest
import torch
from torch import Tensor

import dovetail

from .small_pipeline import WIDTH, Block, Model, Pipeline

pytestmark = pytest.mark.usefixtures("clean_sims")

MODE: ContextVar[Any] = ContextVar("mode", default=None)
LOCAL = threading.local()


@dataclass
class Collector:
    factor: float = 1.0
    found: list[Tensor] = field(default_factory=list)


class OfNumber(Block):
    def between(self, x: Tensor) -> Tensor:
        return torch.relu(x) * (MODE.get() or 1.0)


class OfTable(Block):
    def between(self, x: Tensor) -> Tensor:
        return torch.relu(x) * (MODE.get() or {"factor": 1.0})["factor"]


class OfObject(Block):
    def between(self, x: Tensor) -> Tensor:
        one = MODE.get()
        if one is None:
            return torch.relu(x)
        one.found.append(x)
        return torch.relu(x) * one.factor


class OfThread(Block):
    def between(self, x: Tensor) -> Tensor:
        return torch.relu(x) * getattr(LOCAL, "factor", 1.0)


def _of_thread(value: Any) -> None:
    vars(LOCAL).clear() if value is None else setattr(LOCAL, "factor", value)


CASES: list[tuple[type[Block], Callable[[Any], Any], list[Any]]] = [
    (OfNumber, MODE.set, [None, 3.0, 2.0, 3.0]),
    (OfTable, MODE.set, [None, {"factor": 3.0}, {"factor": 2.0}]),
    (OfObject, MODE.set, [None, Collector(), Collector(2.0), Collector()]),
    (OfThread, _of_thread, [None, 3.0, 2.0, None]),
]


@pytest.mark.slow
@pytest.mark.few(2)
@pytest.mark.parametrize(("kind", "put", "values"), CASES)
def test_a_call_computes_with_what_variables_of_the_context_and_the_thread_hold(
    kind: type[Block], put: Callable[[Any], Any], values: list[Any]
) -> None:
    torch.manual_seed(0)
    model, x = Model(kind), torch.randn(3, WIDTH)
    eager, pipe = copy.deepcopy(model), Pipeline(unet=model)
    dovetail.compile_pipeline(pipe, "unet=sim0&sim1")
    try:
        for value in values:
            expected, found = copy.deepcopy(value), copy.deepcopy(value)
            put(expected)
            with torch.no_grad():
                wanted = eager(x)
            put(found)
            assert torch.equal(pipe(x), wanted)
            if isinstance(value, Collector):
                pairs = zip(found.found, expected.found, strict=True)
                assert all(torch.equal(one.cpu(), other) for one, other in pairs)
    finally:
        put(None)
