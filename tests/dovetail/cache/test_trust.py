"""What somebody else could have written is neither taken nor added to."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from types import ModuleType

import pytest
import torch

import dovetail
from dovetail.cache import folder, traces, trust

Load = Callable[..., ModuleType]
X = torch.ones(2, 4)

pytestmark = pytest.mark.skipif(not hasattr(os, "getuid"), reason="a system without users")


def compiled_twice(load: Load, between: Callable[[], object]) -> None:
    for _ in range(2):
        model = load().Model()
        assert torch.equal(dovetail.compile(model, (X,), backend="cpu")(X)["y"], model(X)["y"])
        traces.wait()
        between()


@pytest.mark.parametrize("mode", [0o777, 0o770, 0o720, 0o702])
def test_a_folder_that_others_may_write_is_not_read_and_that_is_said_once(
    load: Load, traced: list[str], cache: Path, caplog: pytest.LogCaptureFixture, mode: int
) -> None:
    compiled_twice(load, lambda: cache.chmod(mode))
    assert traced == ["Model"] * 2
    assert len(list(cache.iterdir())) == 1
    said = [record.getMessage() for record in caplog.records if "chmod go-w" in record.getMessage()]
    assert len(said) == 1
    assert str(cache) in said[0]
    cache.chmod(0o700)
    compiled_twice(load, lambda: None)
    assert traced == ["Model"] * 2


def test_an_entry_that_others_may_write_is_traced_and_written_anew(
    load: Load, traced: list[str], cache: Path, caplog: pytest.LogCaptureFixture
) -> None:
    compiled_twice(load, lambda: [entry.chmod(0o666) for entry in cache.iterdir()])
    assert traced == ["Model"] * 2
    assert "others may write it (mode 666)" in caplog.text
    compiled_twice(load, lambda: [entry.chmod(0o600) for entry in cache.iterdir()])
    assert traced == ["Model"] * 3


def test_what_belongs_to_somebody_else_is_not_read(
    load: Load, traced: list[str], cache: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    compiled_twice(load, lambda: monkeypatch.setattr(trust.os, "getuid", lambda: os.stat(cache).st_uid + 1))
    monkeypatch.undo()
    is_root = os.getuid() == 0  # what is root's is believed by everybody
    assert traced == ["Model"] * (1 if is_root else 2)
    assert ("belongs to the user" in caplog.text) is not is_root


def test_somebody_elses_file_is_doubted_and_roots_is_not(tmp_path: Path) -> None:
    mine = tmp_path / "file"
    mine.touch(mode=0o600)
    found = list(mine.stat())
    for uid, is_doubted in ((os.getuid(), False), (0, False), (os.getuid() + 1, True)):
        found[4] = uid
        assert bool(trust.doubt(os.stat_result(found), mine)) is is_doubted


def test_folders_and_entries_are_made_for_this_user_alone(
    load: Load, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    deep = cache / "of" / "mine"
    monkeypatch.setenv(folder.PLACE, str(deep))
    before = os.umask(0o002)
    try:
        compiled_twice(load, lambda: None)
    finally:
        os.umask(before)
    (entry,) = deep.iterdir()
    assert [one.stat().st_mode & 0o777 for one in (cache, deep.parent, deep, entry)] == [0o700, 0o700, 0o700, 0o600]
