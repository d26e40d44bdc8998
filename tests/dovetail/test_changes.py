"""What users change in a pipeline gives eager's picture, and is read back as eager has it, wherever weights rest.

A few cells of the table that `python -m benchmarks.changes` prints; each runs in a process of its own.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from testbed.changes.cells import GOOD, GRID, READING, SETTINGS, Cell, Setting
from testbed.changes.change import CHANGES
from testbed.changes.processes import prepared, run
from tests.cases import drawn

DRAWN = 40
DISK = Setting("disk", "after", "layer")
UNREAD = Setting("device", "before", "layer")
READ = Setting("disk", "before", "layer", reads=True)
QUICK = [
    Cell("data_add", UNREAD),
    Cell("replace_a_module", DISK),
    Cell("lora_fused_over_a_written_weight", READ),
]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return prepared(tmp_path_factory.mktemp("changes"))


def not_as_in_eager(cells: list[Cell], folder: Path) -> list[str]:
    return [f"{cell}: {found.kind}: {found.words}" for cell, found in run(cells, folder) if found.kind not in GOOD]


@pytest.mark.slow
def test_a_change_of_weights_is_seen_and_read_back_as_in_eager(folder: Path) -> None:
    assert not not_as_in_eager(QUICK, folder)


@pytest.mark.slow
def test_forty_changes_drawn_from_all_are_seen_and_read_back_as_in_eager(folder: Path) -> None:
    assert not not_as_in_eager(drawn(GRID, DRAWN), folder)


def test_every_change_stands_under_every_setting_once() -> None:
    assert len(set(GRID)) == len(GRID) == len(CHANGES) * (len(SETTINGS) + len(READING))
