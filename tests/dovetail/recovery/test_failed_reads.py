"""A read of streamed weights fails in the midst of a generation."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

import dovetail
from dovetail.compiler.errors import WeightError
from dovetail.runtime import sim
from testbed.pipelines import tiny_pipelines
from testbed.pipelines.tiny_pipelines import paint

from .reads import Reads

pytestmark = pytest.mark.usefixtures("clean_sims")

STREAMED = {"backend": "sim0", "params_backend": "disk", "max_vram": "sim0=300000B"}


@pytest.fixture(autouse=True)
def _let_go() -> Iterator[None]:
    yield
    gc.collect()


class Saved:
    """A tiny FLUX in files, and one step of it."""

    def __init__(self, folder: Path) -> None:
        pipe, call = tiny_pipelines.flux()
        pipe.save_pretrained(folder)
        self.folder, self.call = folder, {**call, "num_inference_steps": 1}

    def load(self) -> Any:
        return dovetail.load_pipeline(self.folder, rig="sim0=64MiB,sim1=64MiB,cpu=8GiB", **STREAMED)


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> Saved:
    return Saved(tmp_path_factory.mktemp("flux"))


def painted(saved: Saved, reads: Reads) -> tuple[torch.Tensor, int]:
    """The picture, and how many reads it took; the pipeline is dropped."""
    pipe = saved.load()
    pipe.dovetail.plan(**saved.call)
    reads.count = 0
    return paint(pipe, saved.call).cpu(), reads.count


@pytest.mark.slow
def test_a_read_that_fails_in_the_midst_ends_with_one_error_and_nothing_is_left_of_dropped_pipelines(
    saved: Saved, monkeypatch: pytest.MonkeyPatch
) -> None:
    reads = Reads(monkeypatch)
    expected, whole = painted(saved, reads)
    pipe = saved.load()
    pipe.dovetail.plan(**saved.call)
    reads.how, reads.count, reads.at = "fails", 0, whole * 3 // 4
    with pytest.raises(WeightError, match="the disk is gone"):
        paint(pipe, saved.call)
    reads.at = -1
    found = paint(pipe, saved.call).cpu()
    assert torch.equal(found, expected)
    pipe.dovetail.undo()
    del pipe, found
    gc.collect()
    assert [sim.stats(index).in_use for index in range(2)] == [0, 0]  # what is logged keeps nothing of errors alive
