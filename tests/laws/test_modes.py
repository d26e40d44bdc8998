"""Tiny entries of 256 tokens or more under modes that are drawn: near float64, in the bytes and peaks planned."""

from __future__ import annotations

import os

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from testbed.exact import InFloat64
from testbed.mode_cells import cells, judge
from testbed.zoo.everything import TINY
from tests.cases import drawn

SEED = int(os.environ["DOVETAIL_TEST_SEED"]) % 1000
OWN_PYTHON = {"CosmosTransformer3DModel"}
"""What no trace takes in float64."""


def test_a_reference_in_float64_is_not_rounded_where_its_module_casts_to_float32() -> None:
    drawn = torch.Generator().manual_seed(SEED)
    x, weight = (torch.randn(16, 16, dtype=torch.float64, generator=drawn) for _ in range(2))
    of = nn.Parameter(weight)

    def cast(narrow: torch.dtype) -> torch.Tensor:
        scores = F.softmax((x @ of).to(narrow) @ of.to(narrow).t(), -1, dtype=narrow)
        return F.layer_norm(scores.type(narrow), (16,)).sum(-1, dtype=narrow).to(x.dtype)

    with torch.no_grad(), InFloat64():
        assert torch.equal(cast(torch.float32), cast(torch.float64))
        assert x.to(torch.float32).dtype == torch.float32, "what no weight has a part in is what eager makes of it"
    with torch.no_grad():
        assert not torch.equal(cast(torch.float32), cast(torch.float64))


@pytest.mark.slow
@pytest.mark.parametrize("name", drawn([one for one in TINY if one not in OWN_PYTHON], 4))
def test_an_entry_is_right_under_every_mode(name: str) -> None:
    for cell in cells([name], SEED):
        verdict = judge(cell)
        assert not verdict.wrong, f"{cell}: {verdict.wrong}"
        left = [one for one in verdict.whole if one.endswith("no way")]
        assert not left, f"{cell}: {left}"
