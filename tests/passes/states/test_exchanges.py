"""Each device is sent what it lacks, and nothing else."""

from __future__ import annotations

from itertools import accumulate, pairwise, product
from math import prod
from unittest.mock import patch

from hypothesis import given
from hypothesis import strategies as st

from dovetail.compiler.ir.boxes import landings
from dovetail.compiler.ir.slices import bounds_of
from dovetail.compiler.ir.state import PARTIAL, WHOLE, Split, State
from dovetail.passes.states import shares as shares_of
from dovetail.passes.states.exchanges import Flow, can_change, exchanges_of, flow_of

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


def test_a_sum_that_is_not_small_takes_two_exchanges_to_begin() -> None:
    two, halves = group(1, 1, latency=1.0), Split(0, (bounds_of(4, (1, 1)),))
    changes = (PARTIAL, WHOLE), (PARTIAL, halves), (halves, WHOLE)
    assert [exchanges_of(two, *change, SHAPE, 2) for change in changes] == [1, 1, 1]
    with patch.object(shares_of, "SMALL_SUM", 0):
        assert [exchanges_of(two, *change, SHAPE, 2) for change in changes] == [2, 1, 1]
    flow = flow_of(two, PARTIAL, WHOLE, SHAPE, 2)
    assert two.seconds(flow, 2) == two.seconds(flow) + 1.0


def test_nothing_is_sent_of_what_all_have_and_nothing_becomes_terms() -> None:
    flow = flow_of(group(1, 1), WHOLE, Split(0, (bounds_of(4, (1, 1)),)), SHAPE, 2)
    assert not any(map(any, flow))
    assert not can_change(WHOLE, PARTIAL)


def _landed(source: State, target: State, shape: tuple[int, ...], count: int, itemsize: int) -> Flow:
    """The bytes of the boxes that devices send one another."""
    total = itemsize * prod(shape)

    def own(one: int) -> list[int]:
        return [size if not isinstance(source, Split) or axis != source.axis else source.length(one)
                for axis, size in enumerate(shape)]  # fmt: skip

    def sent(one: int, other: int) -> int:
        parts = (landing.taken.part(tuple(own(one))) for landing in landings(source, target, one, other))
        held = source.share(one) if isinstance(source, Split) else 1.0
        return round(sum(part * held for part in parts) * total) if one != other else 0

    return tuple(tuple(sent(one, other) for other in range(count)) for one in range(count))


@st.composite
def _changes(draw: st.DrawFn) -> tuple[list[int], tuple[int, ...], State, State]:
    """Shares, a shape, and two states of a tensor of it, of which the first is split in any segments."""
    shares = draw(SHARES)
    shape = draw(st.tuples(st.integers(1, 9), st.integers(1, 9), st.integers(1, 9)))

    def split() -> Split:
        axis = draw(st.integers(0, 2))
        ends = sorted({0, shape[axis], *draw(st.lists(st.integers(1, shape[axis]), max_size=3))})
        each = [[at + start for at in (0, *accumulate(stop - start for start, stop in bounds_of(end - start, shares)))]
                for start, end in pairwise(ends)]  # fmt: skip
        return Split(axis, tuple(tuple(pairwise(one)) for one in each))

    return shares, shape, split(), draw(st.sampled_from([WHOLE, split()]))


@given(_changes())
def test_bytes_by_formula_are_those_of_the_boxes_that_are_sent(
    change: tuple[list[int], tuple[int, ...], State, State],
) -> None:
    shares, shape, source, target = change
    flow = flow_of(group(*shares), source, target, shape, 4)
    expected = _landed(source, target, shape, len(shares), 4)
    assert flow == (expected if source != target else ((0,) * len(shares),) * len(shares))


@given(_changes(), st.sampled_from([0, shares_of.SMALL_SUM]), st.sampled_from([2, 4]))
def test_the_bytes_of_a_sum_are_those_of_its_terms_and_of_its_parts(
    change: tuple[list[int], tuple[int, ...], State, State], small: int, of_term: int
) -> None:
    """Each device has a term, one behind another, and is sent what is its part of each; then parts go to all.

    Of a small sum each is sent all terms, and nothing after them. Terms may cross in fewer bytes than parts, but for
    those of a small sum.
    """
    shares, shape, _, target = change
    count, terms = len(shares), Split(0, (tuple(pairwise(range(len(shares) + 1))),))
    with patch.object(shares_of, "SMALL_SUM", small):
        into = target if isinstance(target, Split) else shares_of.state_of_sum(shape, 4, count)
        of_term = of_term if into != WHOLE else 4
        flow = flow_of(group(*shares), PARTIAL, target, shape, 4, of_term)
    parted = Split(into.axis + 1, into.segments) if isinstance(into, Split) else WHOLE
    together = _landed(terms, parted, (count, *shape), count, of_term)
    is_sent_on = target == WHOLE and into != WHOLE
    after = _landed(into, target, shape, count, 4) if is_sent_on else ((0,) * count,) * count
    assert flow == tuple(tuple(map(sum, zip(*rows, strict=True))) for rows in zip(together, after, strict=True))
