"""Files that fail, stall, return short or end at some read of a pipeline's first generation."""

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
from tests.cases import slow_but

from .reads import Reads

pytestmark = pytest.mark.usefixtures("clean_sims")

REQUEST = {"backend": "unet=sim0&sim1,te=sim1,vae=sim0", "rig": "sim0=64MiB,sim1=64MiB,cpu=8GiB"}
PARTS = 8


@pytest.fixture(autouse=True)
def _let_go() -> Iterator[None]:
    yield
    gc.collect()


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, Any], torch.Tensor]:
    pipe, call = tiny_pipelines.sd()
    folder = tmp_path_factory.mktemp("sd")
    pipe.save_pretrained(folder)
    call = {**call, "num_inference_steps": 2}
    return folder, call, paint(pipe, call)


CASES = [("fails", 5), ("short", 2), ("ends", 3), ("stalls", 7)]


@pytest.mark.fifth
@pytest.mark.parametrize(("how", "part"), slow_but(CASES[:1], CASES))
def test_a_read_that_goes_wrong_gives_the_same_picture_or_one_error(
    how: str, part: int, saved: tuple[Path, dict[str, Any], torch.Tensor], monkeypatch: pytest.MonkeyPatch
) -> None:
    folder, call, expected = saved
    reads = Reads(monkeypatch)
    pipe = dovetail.load_pipeline(folder, **REQUEST)
    pipe.dovetail.prepare(**call)
    del pipe
    gc.collect()
    whole, reads.count = reads.count, 0
    reads.how, reads.at = how, 1 + whole * part // PARTS
    found = None
    try:
        pipe = dovetail.load_pipeline(folder, **REQUEST)
        found = paint(pipe, call)
    except WeightError as error:
        assert how in ("fails", "ends")
        assert "the disk is gone" in str(error) or "ends at byte" in str(error)
        pipe = dovetail.load_pipeline(folder, **REQUEST)
        found = paint(pipe, call)  # the disk is back
    assert torch.equal(found.cpu(), expected)
    assert reads.count >= reads.at
    del pipe, found
    gc.collect()
    assert [sim.stats(index).in_use for index in range(2)] == [0, 0]
