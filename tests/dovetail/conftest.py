"""Fixtures of the tests of the face: compiled pipelines, and what comes before and after them."""

from __future__ import annotations

import gc
from collections.abc import Iterator

import pytest

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
