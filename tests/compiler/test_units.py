"""Sizes that stand beside each other are compared at a glance."""

from __future__ import annotations

import re

from hypothesis import example, given
from hypothesis import strategies as st

from dovetail.compiler.units import format_bytes, format_bytes_beside, parse_bytes

SIZE = re.compile(r"<?[0-9]+(\.[0-9])? (B|[KMGT]iB)")


@given(st.lists(st.integers(0, 2**50), min_size=1, max_size=5))
@example([2**30 - 1, 2**20])
@example([1023, 2**30 - 2**15])
def test_sizes_beside_each_other_have_one_unit(sizes: list[int]) -> None:
    told = [format_bytes_beside(size, max(sizes)) for size in sizes]
    assert all(map(SIZE.fullmatch, told))
    assert len({one.split()[1] for one in told}) == 1
    assert told[sizes.index(max(sizes))] == format_bytes(max(sizes))


@given(st.integers(0, 2**50), st.integers(1, 2**50))
def test_what_is_told_is_off_by_less_than_a_tenth_of_the_unit(size: int, more: int) -> None:
    told = format_bytes_beside(size, size + more)
    unit = parse_bytes(f"1 {told.split()[1]}")
    shown = parse_bytes(told.removeprefix("<"))
    assert abs(shown - size) <= 0.1 * unit
    assert told.startswith("<") == (0 < size < 0.05 * unit and unit > 1)
