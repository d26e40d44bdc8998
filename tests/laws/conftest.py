from __future__ import annotations

import gc
import os
import random
from collections.abc import Iterator

import pytest
from torch._subclasses.fake_tensor import FakeTensorMode

from dovetail.passes.states import shares


@pytest.fixture(autouse=True, scope="session")
def _quick_collection() -> Iterator[None]:
    """Collecting garbage in every example is quick when what torch has imported is not looked at."""
    FakeTensorMode()
    gc.collect()
    gc.freeze()
    yield
    gc.unfreeze()


@pytest.fixture(autouse=True)
def _sums_of_tiny_models(monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest) -> None:
    """What tiny models add up is small; as the seed draws it, devices add up parts of it, as of what is not."""
    choice = random.Random(f"{request.node.nodeid} {os.environ['DOVETAIL_TEST_SEED']}")
    monkeypatch.setattr(shares, "SMALL_SUM", choice.choice([0, shares.SMALL_SUM]))
