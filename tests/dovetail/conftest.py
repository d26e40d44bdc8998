"""Fixtures of the tests of the face: compiled pipelines, and what comes before and after them."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from typing import Any

import pytest

from dovetail.compiler.frontend import trace as tracing
from dovetail.runtime import sim


@pytest.fixture
def clean_sims() -> Iterator[None]:
    """Simulated devices of the host's memory, with nothing of other tests in them, counting from zero."""
    gc.collect()
    sim.enable()
    for index in range(3):
        sim.reset_stats(index)
    yield
    gc.collect()
    sim.enable()


@pytest.fixture
def traced(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The names of the classes that were really traced, one after another."""
    found: list[str] = []
    own = tracing.trace

    def counted(module: Any, *args: Any, **kwargs: Any) -> Any:
        found.append(type(module).__name__)
        return own(module, *args, **kwargs)

    monkeypatch.setattr(tracing, "trace", counted)
    return found
