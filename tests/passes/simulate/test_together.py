"""Predicted seconds of several cards beside published ones: most within what is asked; work is that of traces."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from dovetail.compiler.devices.cards import card_of
from testbed.seconds.together import WORK as FILE
from testbed.seconds.together import off_by, predicted, read_together, retraced, summary
from testbed.seconds.together_rows import NVLINK, ROWS, Row

WORK = read_together()


@pytest.mark.parametrize("row", ROWS, ids=lambda row: f"{row.count}x {row.card} {row.what} {row.way} {row.seconds}")
def test_a_row_has_a_source_a_card_and_a_cause_where_it_is_missed(row: Row) -> None:
    assert row.source.address.startswith("https://")
    assert row.source.title
    assert card_of(row.card) is not None
    assert bool(row.cause) == (abs(off_by(row, WORK)) > row.within)


def test_four_of_five_rows_that_nothing_was_fitted_on_lie_within_what_is_asked() -> None:
    others = [row for row in ROWS if not row.fitted]
    assert len(others) >= len(ROWS) - 1
    for links in (True, False):
        alike = [row for row in others if (row.within == NVLINK) is links]
        within = sum(abs(off_by(row, WORK)) <= row.within for row in alike)
        assert within >= 0.8 * len(alike), summary(WORK)


def test_the_documentation_counts_them() -> None:
    others = [row for row in ROWS if not row.fitted]
    within = sum(abs(off_by(row, WORK)) <= row.within for row in others)
    told = " ".join((Path(__file__).parents[3] / "docs/devices.md").read_text().split())
    assert f"beside {len(ROWS)} published measurements" in told
    assert f"Of the other {len(others)} rows {within} lie within what was asked" in told


def test_cards_across_sockets_are_explained_by_a_root_that_all_of_them_share() -> None:
    for row in (one for one in ROWS if one.links):
        assert abs(off_by(row, WORK, row.links)) <= row.within
        switches = ";".join(f"cuda{at}+cuda{at + 1}@root{at}" for at in range(0, row.count - 1, 2))
        assert predicted(row, WORK) <= predicted(row, WORK, f";{switches}") < predicted(row, WORK, row.links)


def test_a_quicker_bridge_takes_no_longer() -> None:
    row = next(one for one in ROWS if one.count == 2 and one.card == "H100")
    ratios = [predicted(row, WORK, f";cuda0-cuda1={rate}GB/s") for rate in (10, 50, 200, 1000)]
    assert ratios == sorted(ratios, reverse=True)


def test_operations_that_start_quicker_scale_better() -> None:
    row = next(one for one in ROWS if one.fitted)
    ratios = [predicted(replace(row, launch=launch), WORK) for launch in (0.0, 5e-6, 2e-5)]
    assert ratios == sorted(ratios)


@pytest.mark.slow
def test_the_work_that_is_kept_is_that_of_a_trace() -> None:
    kept = json.loads(FILE.read_text())
    for key, rows in json.loads(json.dumps(retraced("wan2.1-1.3b-33f"))).items():
        assert rows == kept[key]
