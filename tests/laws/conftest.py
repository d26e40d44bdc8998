from __future__ import annotations

import gc
from collections.abc import Iterator

import pytest
from torch._subclasses.fake_tensor import FakeTensorMode


@pytest.fixture(autouse=True, scope="session")
def _quick_collection() -> Iterator[None]:
    """Collecting garbage in every example is quick when what torch has imported is not looked at."""
    FakeTensorMode()
    gc.collect()
    gc.freeze()
    yield
    gc.unfreeze()
