from __future__ import annotations

import gc
from collections.abc import Iterator
from importlib.util import find_spec

import pytest

from dovetail.runtime import sim

GIB = 2**30

collect_ignore = [] if find_spec("triton") else ["quantized/test_fused.py"]


@pytest.fixture
def sim_devices() -> Iterator[None]:
    """Three simulated devices of 1 GiB, counting from zero and on their default streams."""
    sim.enable({0: GIB, 1: GIB, 2: GIB})
    if any(sim.stats(index).in_use for index in range(3)):
        gc.collect()
    for index in range(3):
        sim.synchronize(index)
        sim.reset_stats(index)
    yield
    for index in range(3):
        sim.synchronize(index)
