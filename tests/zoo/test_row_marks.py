"""Law 5 on full-size models: which weights a row split marks, against what the modules themselves say."""

from __future__ import annotations

import pytest

from tests.cases import slow_but

from .full_size import FULL_SIZE
from .row_split import marks

QUICK = ("te-clip-l", "vae-qwenimage-enc")
NOTHING = ("vae-wan2.1-enc", "vae-wan2.1-dec", "vae-qwenimage-enc", "vae-qwenimage-dec")
"""Convolutions only."""


@pytest.mark.parametrize("name", slow_but(QUICK, FULL_SIZE))
def test_every_eligible_weight_of_a_full_size_model_is_marked_and_none_other(name: str) -> None:
    found, eligible = marks(FULL_SIZE[name])
    assert found == eligible
    assert bool(found) != (name in NOTHING)
