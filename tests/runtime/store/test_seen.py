"""Weights that are looked at again: what was replaced is seen, also where new data lies in the place of the old."""

from __future__ import annotations

import torch
from torch import nn

from dovetail.runtime.store.seen import Seen


def test_data_at_an_address_that_was_used_before_is_seen() -> None:
    reused = 0
    for _ in range(50):
        module = nn.Linear(8, 8, bias=False)
        seen, before = Seen.of([module]), module.weight.data_ptr()
        assert seen.is_current()
        module.weight.data = torch.zeros(8, 8)
        module.weight.data = torch.ones(8, 8)
        reused += module.weight.data_ptr() == before
        assert not seen.is_current()
    assert reused


def test_what_was_not_touched_is_as_it_was() -> None:
    module = nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4), nn.Linear(4, 0))
    seen = Seen.of(list(module.modules()))
    assert seen.is_current()
    module[1].running_mean.add_(1)
    assert not seen.is_current()
