"""What users change in a pipeline gives eager's picture, and is read back as eager has it, wherever weights rest.

A few cells of the table that `python -m benchmarks.changes` prints; each runs in a process of its own.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import nn

from dovetail.runtime import sim
from testbed.changes.cells import GOOD, GRID, READING, SETTINGS, Cell, Setting
from testbed.changes.change import CHANGES, Change
from testbed.changes.placed import lies, place, refused_where_it_lies
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


@dataclass(frozen=True)
class _Layers:
    """A model of two layers, in the place of a pipeline's."""

    name: str = "layers"

    def eager(self, folder: Path) -> Any:
        return SimpleNamespace(components={"net": nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2))})


def _vector(pipe: Any) -> None:
    nn.utils.parameters_to_vector(pipe.components["net"].parameters())


def _array(pipe: Any) -> None:
    pipe.components["net"][0].weight.detach().numpy()


def test_eager_is_asked_what_it_refuses_with_its_weights_where_those_of_the_pipeline_lie(tmp_path: Path) -> None:
    sim.enable()
    model: Any = _Layers()
    pipe = model.eager(tmp_path)
    on_host = lies(pipe)
    on_one = dict.fromkeys(on_host, torch.device("sim", 0))
    on_two = {name: torch.device("sim", int(".1." in name)) for name in on_host}
    vector, array = (Change("", "", model, (step,), ((step,),)) for step in (_vector, _array))
    for change, wanted in ((vector, (None, None, TypeError)), (array, (None, TypeError, TypeError))):
        found = [refused_where_it_lies(change, [lying], tmp_path) for lying in (on_host, on_one, on_two)]
        assert tuple(found) == wanted
    place(pipe, on_two)
    assert lies(pipe) == on_two
