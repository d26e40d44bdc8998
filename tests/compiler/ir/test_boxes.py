"""What devices send one another where the state of a value changes is what each is to have, every element once."""

from __future__ import annotations

from itertools import pairwise

import torch
from hypothesis import given
from hypothesis import strategies as st

from dovetail.compiler.ir.boxes import landings
from dovetail.compiler.ir.state import WHOLE, Split, State
from tests.laws.parts import cut

MEMBERS = 3
SHAPE = (6, 5, 7)


@st.composite
def states(draw: st.DrawFn) -> State:
    """Whole, or an axis in one segment or several, of which devices may have nothing."""
    if draw(st.integers(0, 3)) == 0:
        return WHOLE
    axis = draw(st.integers(0, 2))
    ends = sorted({0, SHAPE[axis], *draw(st.lists(st.integers(1, SHAPE[axis] - 1), max_size=2))})
    segments = []
    for start, stop in pairwise(ends):
        inner = sorted(draw(st.lists(st.integers(start, stop), min_size=MEMBERS - 1, max_size=MEMBERS - 1)))
        segments.append(tuple(pairwise([start, *inner, stop])))
    return Split(axis, tuple(segments))


@given(states(), states())
def test_each_device_is_sent_what_it_is_to_have(source: State, target: State) -> None:
    value = torch.arange(6 * 5 * 7).reshape(SHAPE)
    for receiver in range(MEMBERS):
        expected = cut(value, target, receiver, MEMBERS)
        found, count = torch.full_like(expected, -1), torch.zeros_like(expected)
        for sender in range(MEMBERS if source != WHOLE else 1):
            has = cut(value, source, sender, MEMBERS)
            for one in landings(source, target, sender, receiver):
                part = one.taken.of(has)
                assert round(one.taken.part(tuple(has.shape)) * has.numel()) == part.numel()
                one.into.of(found).copy_(part)
                one.into.of(count).add_(1)
        if source == target == WHOLE:
            continue  # which is there already
        assert torch.equal(found, expected)
        assert count.eq(1).all()
