"""Weights that are looked at again: what was replaced is seen, also where new data lies in the place of the old."""

from __future__ import annotations

import numpy
import torch
from torch import nn

from dovetail.runtime.store.seen import Seen


def test_data_at_an_address_that_was_used_before_is_seen() -> None:
    module, memory = nn.Linear(8, 8, bias=False), numpy.zeros((8, 8), numpy.float32)
    module.weight.data = torch.from_numpy(memory)
    seen = Seen.of([module])
    assert seen.is_current()
    module.weight.data = torch.ones(8, 8)
    module.weight.data = torch.from_numpy(memory)
    assert module.weight.data_ptr() == memory.ctypes.data
    assert not seen.is_current()


def test_the_same_data_in_another_layout_is_seen() -> None:
    module = nn.Linear(8, 8, bias=False)
    for change in (torch.t, lambda data: data[:4]):
        seen = Seen.of([module])
        assert seen.is_current()
        module.weight.data = change(module.weight.data)
        assert not seen.is_current()


def test_what_was_not_touched_is_as_it_was() -> None:
    module = nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4), nn.Linear(4, 0))
    seen = Seen.of(list(module.modules()))
    assert seen.is_current()
    module[1].running_mean.add_(1)
    assert not seen.is_current()
