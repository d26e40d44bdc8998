"""Another order of steps keeps what must come before what, never ends later, and hides what is sent where it can."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from dovetail.passes.states.overlap import Problem, clock_of, quicker_order


@st.composite
def problems(draw: st.DrawFn) -> Problem:
    """Steps that read others directly, or what was sent of them."""
    count = draw(st.integers(1, 12))
    seconds = st.sampled_from([0.0, 1.0, 2.0, 5.0])
    before, awaits, sent = [], [], draw(st.lists(seconds, min_size=count, max_size=count))
    for step in range(count):
        earlier = draw(st.sets(st.integers(0, step - 1), max_size=3)) if step else set()
        before.append(tuple(sorted(earlier)))
        awaits.append(tuple(one for one in sorted(earlier) if sent[one] and draw(st.booleans())))
    numbers = st.lists(seconds, min_size=count, max_size=count)
    given_first, busy = draw(numbers), draw(seconds)
    return Problem(tuple(before), tuple(draw(numbers)), tuple(sent), tuple(awaits), tuple(given_first), busy)


@given(problems())
def test_another_order_is_sound_and_no_later(problem: Problem) -> None:
    order, steps = quicker_order(problem), list(range(len(problem.before)))
    if order is None:
        return
    assert sorted(order) == steps
    place = {step: at for at, step in enumerate(order)}
    assert all(place[one] < place[step] for step in steps for one in problem.before[step])
    one, other = clock_of(problem, order), clock_of(problem, steps)
    assert one.now <= other.now
    assert (one.now, max(one.arrived.values())) != (other.now, max(other.arrived.values()))


def test_keys_and_values_come_first_and_cross_while_the_rest_is_computed() -> None:
    """Of a wide part, queries, keys, values and attention, in the order of the code."""
    before = ((), (), (), (), (1, 2, 3), (0, 4))
    problem = Problem(before, (4, 1, 1, 1, 3, 1), (0, 0, 2, 2, 0, 0), ((), (), (), (), (2, 3), ()), (0,) * 6)
    assert quicker_order(problem) == [2, 3, 0, 1, 4, 5]
    assert clock_of(problem, range(6)).now == 14
    assert clock_of(problem, [2, 3, 0, 1, 4, 5]).now == 11


def test_an_order_stays_where_nothing_is_sent() -> None:
    assert quicker_order(Problem(((), (), ()), (1, 2, 3), (0,) * 3, ((),) * 3, (0,) * 3)) is None
