"""Fixtures of the tests of the face: compiled pipelines, and what comes before and after them."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from dovetail.cache import traces
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


@pytest.fixture(scope="session")
def _kept(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("traces")


@pytest.fixture
def kept_traces(_kept: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """The cache of traces, for tests that call one model in many ways: it is traced once for all of them."""
    monkeypatch.setenv("DOVETAIL_CACHE", "1")
    monkeypatch.setenv("DOVETAIL_CACHE_DIR", str(_kept))
    yield
    traces.wait()


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
