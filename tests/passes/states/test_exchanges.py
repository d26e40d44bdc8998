"""Each device is sent what it lacks, and nothing else."""

from __future__ import annotations

from itertools import product

from hypothesis import given
from hypothesis import strategies as st

from dovetail.compiler.ir.slices import bounds_of
from dovetail.compiler.ir.state import PARTIAL, WHOLE, Split, State
from dovetail.passes.states.exchanges import can_change, flow_of

from .groups import group

SHAPE = (4, 6)
SHARES = st.lists(st.integers(0, 3), min_size=2, max_size=3).filter(any)


def _split(axis: int, middle: int, shares: list[int]) -> Split:
    """An axis in two segments, or in one."""
    size = SHAPE[axis]
    if not 0 < middle < size:
        return Split(axis, (bounds_of(size, shares),))
    second = bounds_of(size - middle, shares)
    return Split(axis, (bounds_of(middle, shares), tuple((a + middle, b + middle) for a, b in second)))


def _elements(state: State, member: int) -> set[tuple[int, ...]]:
    every = set(product(*map(range, SHAPE)))
    if not isinstance(state, Split):
        return every
    mine = {at for start, stop in state.ranges(member) for at in range(start, stop)}
    return {one for one in every if one[state.axis] in mine}


@given(SHARES, st.integers(0, 1), st.integers(0, 6), st.integers(0, 1), st.integers(0, 6), st.booleans())
def test_each_device_is_sent_the_elements_that_it_lacks(
    shares: list[int], axis: int, middle: int, other: int, elsewhere: int, is_gathered: bool
) -> None:
    source = _split(axis, middle, shares)
    target: State = WHOLE if is_gathered else _split(other, elsewhere, shares)
    flow = flow_of(group(*shares), source, target, SHAPE, 2)
    for member in range(len(shares)):
        lacks = _elements(target, member) - _elements(source, member)
        assert sum(row[member] for row in flow) == 2 * len(lacks)


@given(SHARES, st.integers(0, 1), st.integers(0, 6))
def test_each_device_is_sent_the_terms_of_its_part_of_a_sum(shares: list[int], axis: int, middle: int) -> None:
    target = _split(axis, middle, shares)
    flow = flow_of(group(*shares), PARTIAL, target, SHAPE, 2)
    for member in range(len(shares)):
        assert sum(row[member] for row in flow) == 2 * len(_elements(target, member)) * (len(shares) - 1)


def test_two_equal_devices_send_all_of_a_value_to_reduce_it_and_half_of_it_to_gather_it() -> None:
    two, halves = group(1, 1), Split(0, (bounds_of(4, (1, 1)),))
    reduced, gathered = (flow_of(two, source, WHOLE, SHAPE, 2) for source in (PARTIAL, halves))
    assert [sum(row) for row in reduced] == [48, 48]
    assert [sum(row) for row in gathered] == [24, 24]


def test_nothing_is_sent_of_what_all_have_and_nothing_becomes_terms() -> None:
    flow = flow_of(group(1, 1), WHOLE, Split(0, (bounds_of(4, (1, 1)),)), SHAPE, 2)
    assert not any(map(any, flow))
    assert not can_change(WHOLE, PARTIAL)
