"""Axes are cut by largest remainder on multiples of their units."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from dovetail.compiler.ir.slices import cover
from dovetail.passes.states.shares import cut_in_units

SHARES = st.lists(st.integers(0, 9), min_size=1, max_size=5).filter(any)


@given(st.integers(1, 500), SHARES, st.integers(1, 64))
def test_ranges_cover_an_axis_and_tear_no_unit(size: int, shares: list[int], unit: int) -> None:
    bounds = cut_in_units(size, shares, unit)
    assert cover(bounds, size)
    assert all(end % unit == 0 or end == size for pair in bounds for end in pair)
    assert all(start == stop for (start, stop), share in zip(bounds, shares, strict=True) if not share)


@given(st.integers(1, 500), SHARES)
def test_each_has_its_share_but_for_less_than_a_unit(size: int, shares: list[int]) -> None:
    for (start, stop), share in zip(cut_in_units(size, shares), shares, strict=True):
        assert abs((stop - start) * sum(shares) - size * share) < sum(shares)


def test_published_head_counts_are_cut_as_said() -> None:
    assert [stop - start for start, stop in cut_in_units(30, (1, 1, 1, 1))] == [8, 8, 7, 7]
    assert [stop - start for start, stop in cut_in_units(24, (5, 3, 2))] == [12, 7, 5]
