"""Rows that limit bytes say the same of what can be chosen when they are stated beyond the least."""

from __future__ import annotations

from itertools import accumulate, pairwise, product

from hypothesis import given
from hypothesis import strategies as st

from dovetail.passes.states.slack import beyond_least

BYTES = st.integers(0, 9).map(float)


@given(st.lists(st.lists(BYTES, min_size=1, max_size=3), min_size=1, max_size=4), st.lists(BYTES, max_size=2), BYTES)
def test_what_can_be_chosen_stays_and_no_column_is_closed_that_can_be(
    rivals: list[list[float]], others: list[float], limit: float
) -> None:
    values = [value for some in rivals for value in some] + others
    ends = accumulate(map(len, rivals), initial=0)
    columns = [list(range(start, stop)) for start, stop in pairwise(ends)]
    apart = range(sum(map(len, rivals)), len(values))
    slack = beyond_least({at: value for at, value in enumerate(values) if value}, limit, columns)
    closed = slack.beyond(slack.left)
    for picks in product(*columns, *((None, at) for at in apart)):
        chosen = [at for at in picks if at is not None]
        fits = sum(values[at] for at in chosen) <= limit
        assert fits == (sum(slack.terms.get(at, 0.0) for at in chosen) <= slack.left)
        assert not fits or (not slack.is_none and set(closed).isdisjoint(chosen))
    assert slack.least == sum(map(min, rivals))


def test_a_choice_that_takes_more_than_others_leave_is_closed() -> None:
    slack = beyond_least({0: 8.0, 1: 4.0, 2: 6.0, 3: 3.0}, 10.0, [[0, 1], [2, 3]])
    assert slack.beyond(slack.left) == [0]
    assert slack.terms == {0: 4.0, 2: 3.0}
    assert not slack.is_none
