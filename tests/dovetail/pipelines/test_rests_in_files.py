"""A pipeline on the host whose weights are views of files that leave memory with their phase."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

import dovetail
from dovetail.compiler.spec.residency import Residency
from dovetail.runtime.store.opened_file import OpenedFile
from testbed.pipelines import tiny_pipelines
from testbed.pipelines.tiny_pipelines import paint


@pytest.mark.fifth
@pytest.mark.parametrize("backend", ["cpu", pytest.param(None, marks=pytest.mark.slow)])
def test_the_picture_is_the_same_and_all_that_was_read_leaves(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, backend: str | None
) -> None:
    pipe, call = tiny_pipelines.sd()
    expected = paint(pipe, call)
    pipe.save_pretrained(tmp_path)
    viewed: set[tuple[str, int]] = set()
    released: set[tuple[str, int]] = set()
    view, release = OpenedFile.view, OpenedFile.release

    def note_view(self: OpenedFile, start: int, end: int) -> torch.Tensor:
        viewed.add((str(self.file.path), start))
        return view(self, start, end)

    def note_release(self: OpenedFile, start: int, end: int, streams: bool) -> None:
        released.add((str(self.file.path), start))
        release(self, start, end, streams)

    monkeypatch.setattr(OpenedFile, "view", note_view)
    monkeypatch.setattr(OpenedFile, "release", note_release)
    loaded = dovetail.load_pipeline(tmp_path, backend=backend)
    loaded.dovetail.rest_in_files()
    assert torch.equal(paint(loaded, call), expected)
    assert {one.view.residency for one in loaded.dovetail.components.values()} == {Residency.DISK}
    assert len(viewed) > 100
    assert viewed - released == set()
    assert torch.equal(paint(loaded, call), expected)


@pytest.mark.fifth
def test_weights_in_no_file_stay_where_they_are() -> None:
    pipe, call = tiny_pipelines.sd()
    expected = paint(pipe, call)
    dovetail.compile_pipeline(pipe, "cpu")
    pipe.dovetail.rest_in_files()
    assert {one.view.residency for one in pipe.dovetail.components.values()} == {Residency.DEVICE}
    assert torch.equal(paint(pipe, call), expected)
