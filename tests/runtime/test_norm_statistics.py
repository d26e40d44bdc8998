"""Statistics of norms of which devices have parts are those of the whole, in whatever dtype, shares and memory."""

from __future__ import annotations

import math
from itertools import pairwise

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor
from torch.nn.functional import group_norm, layer_norm

from dovetail.runtime import norm_statistics  # noqa: F401  (which has the kernels)

OPS = torch.ops.dovetail
EPS = 1e-5
MARGIN = 1.2
"""How much farther from exact than the one operation norms by parts are at most; 1.5 times is what is promised."""
DTYPES = st.sampled_from([torch.float16, torch.bfloat16, torch.float32])
MEANS = st.sampled_from([(0.0, 1.0), (1e4, 1e-2), (1e4, 1.0), (-77.5, 1e-3), (1003.0, 0.0), (10.0, 0.1), (0.0, 1e-4)])
SHARES = st.sampled_from([(1, 1), (3, 1), (5, 3, 2), (1, 0), (0, 1, 1), (1, 1, 1, 1), (1, 0, 31)])


def numbers(sizes: tuple[int, ...], dtype: torch.dtype, drawn: tuple[float, float], seed: int) -> Tensor:
    """Numbers about a mean, which differ by several of their own last places if they differ."""
    mean, deviation = drawn
    least = 4 * torch.finfo(dtype).eps * abs(mean) if deviation else 0
    x = torch.randn(sizes, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    return (x * max(deviation, least) + mean).to(dtype)


def pieces(x: Tensor, axis: int, shares: tuple[int, ...]) -> list[Tensor]:
    """What devices have of an axis, in these shares; some of them nothing."""
    ends = [x.shape[axis] * sum(shares[:at]) // sum(shares) for at in range(len(shares) + 1)]
    return [x.narrow(axis, start, stop - start) for start, stop in pairwise(ends)]


def group_norm_by_parts(x: Tensor, groups: int, shares: tuple[int, ...]) -> Tensor:
    """The norm of pictures whose rows are cut."""
    parts = pieces(x, 2, shares)
    statistics = OPS.combined_statistics(torch.cat([OPS.group_statistics(one, groups, 1) for one in parts]))
    return torch.cat([OPS.group_norm_by(one, statistics, None, None, groups, EPS) for one in parts], 2)


def layer_norm_by_parts(x: Tensor, shares: tuple[int, ...]) -> Tensor:
    """The norm over features that are cut, as programs have it."""
    parts = pieces(x.to(torch.promote_types(x.dtype, torch.float32)), -1, shares)
    mean, variance = OPS.combined_statistics(torch.cat([OPS.row_statistics(one, 1) for one in parts]))
    return torch.cat([(one - mean) * torch.rsqrt(variance + EPS) for one in parts], -1).to(x.dtype)


def off(found: Tensor, exact: Tensor) -> float:
    """The root of the mean of squared errors."""
    return (found.double() - exact).square().mean().sqrt().item()


def expect_near(found: Tensor, eager: Tensor, exact: Tensor, x: Tensor) -> None:
    """Errors are at most those of the one operation and a margin, or a unit in the last place of the result.

    Where all numbers are equal the one operation happens to be exact: there it is half of one of what is subtracted.
    """
    assert found.dtype == eager.dtype
    least = torch.finfo(eager.dtype).eps * exact.square().mean().sqrt().item()
    if x.min() == x.max():
        least = torch.finfo(torch.float32).eps * x.abs().max().item() / math.sqrt(EPS) / 2
    assert off(found, exact) <= max(MARGIN * off(eager, exact), least)


@given(DTYPES, MEANS, SHARES, st.integers(0, 2**31))
def test_a_group_norm_by_parts_is_as_near_as_the_whole(
    dtype: torch.dtype, drawn: tuple[float, float], shares: tuple[int, ...], seed: int
) -> None:
    x = numbers((16, 16, 32, 3), dtype, drawn, seed)
    found = group_norm_by_parts(x, 8, shares)
    expect_near(found, group_norm(x, 8), group_norm(x.double(), 8), x)


@given(DTYPES, MEANS, SHARES, st.integers(0, 2**31))
def test_a_layer_norm_by_parts_is_as_near_as_the_whole(
    dtype: torch.dtype, drawn: tuple[float, float], shares: tuple[int, ...], seed: int
) -> None:
    x = numbers((32, 5, 96), dtype, drawn, seed)
    found = layer_norm_by_parts(x, shares)
    expect_near(found, layer_norm(x, (96,)), layer_norm(x.double(), (96,)), x)


@given(SHARES, st.integers(0, 3), st.integers(0, 2**31))
def test_parts_of_nothing_change_no_bit(shares: tuple[int, ...], nothing: int, seed: int) -> None:
    """A device that has several parts has its statistics as the first of them."""
    x = torch.randn((4, 3, 64), generator=torch.Generator().manual_seed(seed)) * 1e-2 + 1e4
    each = [OPS.row_statistics(one, 1) for one in pieces(x, -1, shares)]
    more = [*each[:-1], OPS.row_statistics(pieces(x, -1, shares)[-1], 1 + nothing)]
    assert torch.equal(OPS.combined_statistics(torch.cat(each)), OPS.combined_statistics(torch.cat(more)))


def test_numbers_far_from_zero_do_not_overflow_beside_a_part_of_nothing() -> None:
    x = torch.full((1, 8), 1e30) + torch.arange(8) * 1e24
    statistics = OPS.combined_statistics(OPS.row_statistics(x, 3))
    assert torch.isfinite(statistics[0]).all()
    assert statistics[0].item() == pytest.approx(x.mean().item())


def test_what_comes_channels_last_is_yielded_so_and_no_pictures_are_none() -> None:
    x = torch.randn(2, 8, 6, 5).to(memory_format=torch.channels_last)
    known = torch.stack([torch.zeros(2, 2, 1), torch.ones(2, 2, 1)])
    found = OPS.group_norm_by(x, known, None, None, 2, 0.0)
    assert found.stride() == x.stride()
    assert torch.equal(found, x)
    assert group_norm_by_parts(torch.empty(0, 8, 6, 5), 2, (2, 1)).shape == (0, 8, 6, 5)
