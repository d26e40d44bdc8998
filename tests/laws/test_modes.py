"""Tiny entries of 256 tokens or more under modes that are drawn: near float64, in the bytes and peaks planned."""

from __future__ import annotations

import os

import pytest

from testbed.mode_cells import cells, judge
from testbed.zoo.everything import TINY
from tests.cases import drawn

SEED = int(os.environ["DOVETAIL_TEST_SEED"]) % 1000
OWN_PYTHON = {"CosmosTransformer3DModel"}
"""What no trace takes in float64."""


NORMED = {"LuminaNextDiT2DModel"}
"""What takes the mean of a prompt's squares before any weight has a part in it: under `batch` that stays whole."""


@pytest.mark.slow
@pytest.mark.parametrize("name", drawn([one for one in TINY if one not in OWN_PYTHON], 4))
def test_an_entry_is_right_under_every_mode(name: str) -> None:
    for cell in cells([name], SEED):
        verdict = judge(cell)
        assert not verdict.wrong, f"{cell}: {verdict.wrong}"
        left = [one for one in verdict.whole if one.endswith("no way")]
        assert not left or (name in NORMED and cell.mode == "batch"), f"{cell}: {left}"
