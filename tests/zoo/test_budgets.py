"""Whole pipelines within budgets in which not even a block of their weights has room."""

from __future__ import annotations

import pytest

from testbed.budgets import SIXTY, SLACK, Subject
from tests.cases import drawn

pytestmark = pytest.mark.usefixtures("sims")


@pytest.mark.slow
@pytest.mark.parametrize("name", drawn(SIXTY, 3))
def test_a_pipeline_is_accepted_within_little_more_than_its_hungriest_operation_needs(name: str) -> None:
    subject = Subject(name)
    bound = subject.bound()
    answer = subject.within(int(SLACK * bound.nbytes) + 1)
    assert answer.is_right(bound), answer


@pytest.mark.slow
@pytest.mark.parametrize("name", drawn(SIXTY, 1))
def test_within_less_a_pipeline_keeps_its_budget_or_is_refused_before_anything_runs(name: str) -> None:
    subject = Subject(name)
    bound = subject.bound()
    answer = subject.within(int(0.6 * bound.nbytes))
    assert answer.is_right(bound), answer
