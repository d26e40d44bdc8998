"""What a module's own Python computes in a dry run is noted, and what is large is not computed."""

from __future__ import annotations

from collections import Counter

import torch
from torch.nn import functional

from dovetail.components.own_work import OwnWork
from dovetail.passes.simulate.cost import OpCost


def test_operations_are_noted_by_what_they_read_and_write_and_views_are_none() -> None:
    costs, x = Counter[OpCost](), torch.ones(4, 8)
    with OwnWork(costs):
        made = (x.view(8, 4) * 2).transpose(0, 1)
    assert torch.equal(made, torch.full((4, 8), 2.0))
    assert costs == {OpCost(0.0, x.nbytes, x.nbytes): 1}


def test_attention_is_noted_by_its_arithmetic_and_not_computed() -> None:
    costs, q, k = Counter[OpCost](), torch.randn(1, 2, 6, 8), torch.randn(1, 2, 10, 8)
    with OwnWork(costs):
        made = functional.scaled_dot_product_attention(q, k, k)
    expected = functional.scaled_dot_product_attention(q, k, k)
    assert (made.shape, made.stride(), made.any()) == (expected.shape, expected.stride(), torch.tensor(False))
    ((cost, _),) = costs.items()
    assert (cost.flops, cost.attention) == (2 * 2.0 * 2 * 6 * 10 * 8, True)


def test_what_is_large_looks_as_it_would_and_is_zeros_where_no_value_is_asked_for() -> None:
    x = torch.ones(1024, 1024)
    with OwnWork(Counter()) as work:
        scaled, part, total = (x * 2).t().contiguous(), x[:, 5], x.sum().item()
        with work.paused():
            real = x * 2
    assert (scaled.shape, scaled.stride(), bool(scaled.any())) == (x.shape, x.t().contiguous().stride(), False)
    assert part.untyped_storage().data_ptr() == x.untyped_storage().data_ptr()
    assert (float(real.sum()), total) == (2.0 * 2**20, 0.0)
