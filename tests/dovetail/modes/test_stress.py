"""Calls over several devices to which something happens: a share of what `python -m benchmarks.stress` does."""

from __future__ import annotations

import os

import pytest

from testbed.stress import FAULTS, WAYS, Stress
from tests.cases import drawn


@pytest.mark.slow
@pytest.mark.parametrize("fault", FAULTS)
def test_nothing_is_left_of_calls_and_the_next_one_is_right(fault: str) -> None:
    stress = Stress(int(os.environ["DOVETAIL_TEST_SEED"]), drawn(WAYS, 2), [fault])
    report = stress.run(6)
    stress.end()
    assert not report.wrong, report.wrong[0]
    assert sum(report.counts.values()) == 6
