"""In space a device has of a mask the rows of the queries that it has, and no mask of all queries."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional

from dovetail.compiler.ir.state import WHOLE, Split
from dovetail.compiler.states.strategy import name_of
from dovetail.passes.states.solution import Solution
from dovetail.passes.states.solve import solve
from tests.laws.members import run_by_members

from .groups import group, traced


class Masked(nn.Module):
    """Attention among the pixels of a picture, each of which sees those before it, by a mask of no input."""

    def __init__(self, is_yielded: bool) -> None:
        super().__init__()
        self.is_yielded = is_yielded
        self.into = nn.Conv2d(3, 8, 3, padding=1)

    def forward(self, x: Tensor) -> tuple[Tensor, ...]:
        rows = self.into(x).flatten(2).transpose(1, 2)[:, None]
        order = torch.arange(rows.shape[2])
        mask = torch.where(order[:, None] < order[None], -1e9, 0.0)
        found = functional.scaled_dot_product_attention(rows, rows + 1, rows * 2, mask[None, None])
        return (found, mask) if self.is_yielded else (found,)


def _solved(is_yielded: bool) -> tuple[Solution, list[Tensor], tuple[Tensor, ...]]:
    module, x = Masked(is_yielded), torch.randn(1, 3, 16, 8)
    program = traced(module, x)
    found = solve(program, group(1, 1), "spatial")
    assert isinstance(found, Solution)
    with torch.no_grad():
        whole = module(x)
    return found, run_by_members(program, module, {"x": x}, found.strategies, 2), whole


def test_a_device_has_the_rows_of_a_mask_that_its_queries_need() -> None:
    found, parts, whole = _solved(is_yielded=False)
    states = {name_of(node): way.results[0] for node, way in found.strategies.items()}
    assert isinstance(states["scaled_dot_product_attention"], Split)
    assert isinstance(states["where"], Split)
    assert isinstance(states["lt"], Split)
    assert all(map(torch.allclose, parts, whole, [1e-5] * len(whole)))


def test_a_mask_that_is_yielded_stays_whole() -> None:
    found, parts, whole = _solved(is_yielded=True)
    states = {name_of(node): way.results[0] for node, way in found.strategies.items()}
    assert states["where"] == WHOLE
    assert all(map(torch.allclose, parts, whole, [1e-5] * len(whole)))
