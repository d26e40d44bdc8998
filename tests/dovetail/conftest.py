"""Fixtures of the tests of the face: compiled pipelines, and what comes before and after them."""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import Any

import pytest

from dovetail.cache import answers, traces
from dovetail.compiler.frontend import trace as tracing

TRACED_ONCE = {
    "demo", "explain", "fitting", "jobs", "lora", "modes", "pipelines", "planning", "plans", "recovery", "weights",
    "test_cards", "test_cli", "test_cli_lora", "test_cli_plan", "test_cli_weights", "test_graphml", "test_hub",
    "test_inputs", "test_matrix", "test_option_values", "test_pretrained", "test_prompts_file", "test_row_split",
    "test_single_files", "test_state", "test_summary", "test_wrong_arguments",
}  # fmt: skip
"""Folders and files whose tests call the same few models in many ways, and are not about tracing them."""


@pytest.fixture(autouse=True, scope="module")
def _kept_traces(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """A cache of traces that all tests of a run share, those of other workers too: a model is traced once for them.

    Answers of commands are neither taken nor kept: a test may have changed what they come from.
    """
    if not TRACED_ONCE & {request.path.parent.name, request.path.stem}:
        yield
        return
    own = tmp_path_factory.getbasetemp()
    run = own.parent if "PYTEST_XDIST_WORKER" in os.environ else own  # its folder is that of all workers
    with pytest.MonkeyPatch.context() as monkeypatch:
        monkeypatch.setenv("DOVETAIL_CACHE", "1")
        monkeypatch.setenv("DOVETAIL_CACHE_DIR", str(run / "traces"))
        monkeypatch.setattr(answers, "read", lambda key: None)
        monkeypatch.setattr(answers, "keep", lambda *args: None)
        yield
        traces.wait()


@pytest.fixture
def traced(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The names of the classes that were really traced, one after another; without a cache each of them is."""
    monkeypatch.setenv("DOVETAIL_CACHE", "0")
    found: list[str] = []
    own = tracing.trace

    def counted(module: Any, *args: Any, **kwargs: Any) -> Any:
        found.append(type(module).__name__)
        return own(module, *args, **kwargs)

    monkeypatch.setattr(tracing, "trace", counted)
    return found
