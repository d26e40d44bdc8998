"""Predicted seconds stand beside published ones, most within the range that is printed, and work is what we trace."""

from __future__ import annotations

from collections import Counter
from dataclasses import astuple

import pytest

from dovetail.compiler.devices.cards import card_of
from dovetail.compiler.devices.speeds import SPREAD
from dovetail.passes.rewrites.simplify import Simplify
from testbed.seconds.compared import costs_of, off_by, read_work, summary
from testbed.seconds.parts import PARTS
from testbed.seconds.rows import ROWS, Row
from testbed.zoo.full_size import trace_entry

WORK = read_work()


def test_four_of_five_rows_that_nothing_was_fitted_on_lie_within_the_range() -> None:
    others = [row for row in ROWS if not row.fitted]
    assert len(others) >= 10
    assert len({row.card for row in ROWS}) >= 5
    within = sum(abs(off_by(row, WORK)) <= SPREAD for row in others)
    assert within >= 0.8 * len(others), summary(WORK)


def test_at_most_two_rows_a_card_were_fitted_on() -> None:
    fitted = Counter((row.card, row.dtype) for row in ROWS if row.fitted)
    assert max(fitted.values()) <= 2
    assert all(abs(off_by(row, WORK)) < 0.05 for row in ROWS if row.fitted)


@pytest.mark.parametrize("row", ROWS, ids=lambda row: f"{row.card} {row.what}")
def test_a_row_has_a_source_a_card_and_a_cause_where_it_is_missed(row: Row) -> None:
    assert row.source.startswith("https://")
    assert card_of(row.card) is not None
    assert row.cause or abs(off_by(row, WORK)) <= SPREAD


@pytest.mark.fifth
def test_the_work_that_is_kept_is_that_of_a_trace() -> None:
    program, _ = trace_entry(PARTS["dec-sd15"])
    Simplify().run(program)
    kept = [[*cost[:4], cost[5], count] for cost, count in ((astuple(one), n) for one, n in WORK["dec-sd15"].items())]
    assert sorted(costs_of(program), key=str) == sorted(kept, key=str)
