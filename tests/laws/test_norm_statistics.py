"""Group norms of which each device has a part, along any axis and in any shares, are as near to exact as the whole."""

from __future__ import annotations

import copy
import functools
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn
from torch.fx import Node

from dovetail.compiler.frontend.trace import trace
from dovetail.compiler.ir.ops import COMBINED_STATISTICS, GROUP_STATISTICS
from dovetail.compiler.ir.program import Program, tensors_of
from dovetail.compiler.ir.state import WHOLE, Split, State
from dovetail.compiler.states.strategy import Strategy
from dovetail.compiler.states.table import strategies
from dovetail.passes.states.group_statistics import take_group_norms_apart
from dovetail.passes.states.shares import cut_in_units

from .members import Members, run_by_members

SIZES, GROUPS = (2, 8, 11, 5), 4
UNITS = (1, SIZES[1] // GROUPS, 1, 1)
SHARES = [(1, 1), (3, 1), (5, 3, 2), (1, 0), (0, 1, 1), (1, 1, 1, 1)]
PROMISED = 1.5


class Normed(nn.Module):
    """A group norm with weights of its own."""

    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.GroupNorm(GROUPS, SIZES[1])
        with torch.no_grad():
            self.norm.weight.copy_(torch.linspace(0.5, 1.5, SIZES[1]))
            self.norm.bias.copy_(torch.linspace(-1, 1, SIZES[1]))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """The norm of a picture."""
        return self.norm(x)  # type: ignore[no-any-return]


@functools.cache
def traced(dtype: torch.dtype) -> tuple[nn.Module, Program]:
    """The module and its program."""
    module = Normed().to(dtype).eval()
    return module, trace(module, (torch.zeros(SIZES, dtype=dtype),))


def ways_of(program: Program, state: Split) -> dict[Node, Strategy]:
    """How devices compute each operation where they have the input in a state: in parts, where a rule has it so."""
    has: dict[Node, tuple[State, ...]] = {next(iter(program.inputs())): (state,)}
    found = {}
    for node in program.ops():
        whole, *others = strategies(node, lambda one: [each for each in has.get(one, ()) if each != WHOLE])
        found[node] = next(iter(others), whole)
        has[node] = found[node].results
    return found


@given(
    st.sampled_from([torch.float16, torch.bfloat16, torch.float32]),
    st.sampled_from([(0.0, 1.0), (1e4, 1e-2), (50.0, 1e-3)]),
    st.sampled_from(SHARES),
    st.sampled_from(range(len(SIZES))),
    st.integers(0, 2**31),
)
def test_a_group_norm_in_parts_is_as_near_as_the_whole(
    dtype: torch.dtype, drawn: tuple[float, float], shares: tuple[int, ...], axis: int, seed: int
) -> None:
    (module, program), (mean, deviation) = traced(dtype), drawn
    x = torch.randn(SIZES, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    x = (x * deviation + mean).to(dtype)
    program = program.copy()
    assert take_group_norms_apart(program, len(shares)) == 1
    ways = ways_of(program, Split(axis, (cut_in_units(SIZES[axis], shares, UNITS[axis]),)))
    assert all(isinstance(way.results[0], Split) for node, way in ways.items() if node.target != COMBINED_STATISTICS)
    (found,) = run_by_members(program, module, {"x": x}, ways, len(shares))
    with torch.no_grad():
        eager, exact = module(x), copy.deepcopy(module).double()(x.double())
    least = torch.finfo(dtype).eps * exact.abs().max().item()
    of_mean = torch.finfo(torch.float32).eps * mean / max(deviation, 1e-3)
    assert off(found, exact) <= PROMISED * off(eager, exact) + least + of_mean


def off(found: torch.Tensor, exact: torch.Tensor) -> float:
    """The largest error."""
    return (found.double() - exact).abs().max().item()


@pytest.mark.parametrize("shares", SHARES)
def test_all_devices_have_the_same_statistics_of_what_is_gathered_once(shares: tuple[int, ...]) -> None:
    program = traced(torch.float32)[1].copy()
    take_group_norms_apart(program, len(shares))
    ways = ways_of(program, Split(2, (cut_in_units(SIZES[2], shares),)))
    statistics, combined, _ = program.ops()
    assert [statistics.target, combined.target] == [GROUP_STATISTICS, COMBINED_STATISTICS]
    members = Members(ways, len(shares))
    members.give(next(iter(program.inputs())), torch.randn(SIZES))
    members.compute(statistics)
    members.compute(combined)
    assert members.states[statistics] == ways[statistics].results
    assert isinstance(ways[statistics].results[0], Split)
    first, *others = members.values[combined]
    assert all(torch.equal(first, one) for one in others)
    assert _bytes(statistics) == 3 * len(shares) * SIZES[0] * GROUPS * 4


def _bytes(node: Node) -> Any:
    return sum(one.nbytes for one in tensors_of(node))
