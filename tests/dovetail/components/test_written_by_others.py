"""What another thread writes to globals and classes while a model is compiled stays, where the model only reads it."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import dovetail
from dovetail.compiler.errors import TraceError
from dovetail.compiler.frontend import trace as tracing
from dovetail.components import dry

from .small_pipeline import Block, Model, Pipeline

pytestmark = pytest.mark.usefixtures("clean_sims")

EVENTS: list[int] = []
TABLE: dict[str, int] = {}
BOX = SimpleNamespace(count=0)
NUMBER = 0
SCALE = torch.ones(())
MINE: list[int] = []


class Seen:
    count = 0
    items: list[int] = []  # noqa: RUF012


class Reading(Block):
    """Names what others write to, and only reads it."""

    def between(self, x: Tensor) -> Tensor:
        if len(EVENTS) > 10**9 or NUMBER < 0 or Seen.count < 0 or BOX.count < 0 or "never" in TABLE:
            return x
        return torch.relu(x) * SCALE if len(Seen.items) < 10**9 else x


class Writing(Reading):
    """It counts and collects beside that, elsewhere."""

    calls = 0

    def between(self, x: Tensor) -> Tensor:
        note()
        return super().between(x)


class Looking(Writing):
    """It looks at a value, so that it runs by its parts."""

    def between(self, x: Tensor) -> Tensor:
        return super().between(x) if x.sum() < 1e9 else x


class Failing(nn.Module):
    """It looks at a value, and fails."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(32, 32)

    def forward(self, x: Tensor) -> Tensor:
        note()
        if self.layer(x).sum() < 1e9:
            raise ValueError("never")
        return x


def note() -> None:
    Writing.calls += 1
    MINE.append(1)


@pytest.fixture(autouse=True)
def written(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[int]]:
    """How often another thread has written to all of these; nothing before and after a test."""
    made: list[int] = []

    def write() -> None:
        global NUMBER, SCALE
        made.append(1)
        EVENTS.append(1)
        TABLE[str(len(TABLE))] = 1
        Seen.items.append(1)
        BOX.count += 1
        Seen.count += 1
        NUMBER += 1
        SCALE = SCALE.clone()

    def while_another_writes(function: Callable[..., Any]) -> Callable[..., Any]:
        def called(*args: Any, **named: Any) -> Any:
            thread = threading.Thread(target=write)
            thread.start()
            thread.join()
            return function(*args, **named)

        return called

    monkeypatch.setattr(tracing, "_export", while_another_writes(tracing._export))
    monkeypatch.setattr(dry, "zeros_of", while_another_writes(dry.zeros_of))
    yield made
    for one in (EVENTS, TABLE, Seen.items, MINE):
        one.clear()  # type: ignore[attr-defined]
    BOX.count = Seen.count = Writing.calls = 0
    globals()["NUMBER"] = 0


def found() -> tuple[int, ...]:
    return len(EVENTS), len(TABLE), len(Seen.items), BOX.count, Seen.count, NUMBER


@pytest.mark.fifth
@pytest.mark.few(2)
@pytest.mark.parametrize("kind", [Reading, Writing, Looking])
def test_what_another_thread_writes_while_a_model_is_compiled_is_there_afterwards(
    kind: type[Block], written: list[int]
) -> None:
    model = Model(kind).eval()
    model.blocks, x = model.blocks[:2], torch.randn(4, 32)
    pipe, scale = Pipeline(model), SCALE
    dovetail.compile_pipeline(pipe, "diffusion=sim0&sim1")
    pipe(x)
    assert len(written) > 0
    assert found() == (len(written),) * 6
    assert scale is not SCALE
    assert Writing.calls == len(MINE) == (0 if kind is Reading else 2)


@pytest.mark.parametrize("kind", [Writing, Looking])
def test_so_it_is_where_a_module_is_compiled(kind: type[Block], written: list[int]) -> None:
    dovetail.compile(kind().eval(), (torch.randn(4, 32),), backend="sim0")
    assert found() == (len(written),) * 6
    assert Writing.calls == len(MINE) == 0


def test_a_module_that_refuses_its_example_call_leaves_nothing_in_classes_and_globals() -> None:
    with pytest.raises(TraceError, match="refuses this example call: ValueError: never"):
        dovetail.compile(Failing().eval(), (torch.randn(4, 32),), backend="sim0")
    assert Writing.calls == len(MINE) == 0
