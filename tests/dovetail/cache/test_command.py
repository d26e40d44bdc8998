"""`dovetail cache` lists, removes and finds what is kept; a second `dovetail generate` traces nothing."""

from __future__ import annotations

import json
import re
import time
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
import torch
from typer.testing import CliRunner

import dovetail
from dovetail.cache import folder, traces
from dovetail.cli.app import app
from dovetail.cli.commands.cache import _age
from dovetail.compiler.errors import SpecError
from tests.command_line import done


@pytest.fixture
def kept(cache: Path) -> Path:
    """Two entries, one of them damaged."""
    for key in ("a" * 40, "b" * 40):
        folder.write(key, [b"nothing"], 2**20)
    return cache


def test_an_empty_cache_is_listed_as_such(cache: Path) -> None:
    assert f"0 entries, 0 B of at most 512.0 MiB, in {cache}" in done("cache")


def test_entries_are_listed_with_size_and_age(kept: Path) -> None:
    shown = done("cache")
    assert len(re.findall(r"^damaged +7 B  just now +[ab]{12}$", shown, re.MULTILINE)) == 2
    assert "2 entries, 14 B" in shown


def test_entries_as_json(kept: Path) -> None:
    found = json.loads(done("cache", "list", "--json"))
    assert [one["bytes"] for one in found["entries"]] == [7, 7]
    assert found["on"] is True
    assert found["path"] == str(kept)


def test_clear_removes_entries_and_nothing_else(kept: Path) -> None:
    (kept / "notes.txt").write_text("mine")
    assert "removed 2 entries (14 B)" in done("cache", "clear")
    assert [one.name for one in kept.iterdir()] == ["notes.txt"]


def test_the_path_is_printed_alone(cache: Path) -> None:
    assert done("cache", "path") == f"{cache}\n"


def test_a_size_that_is_none_is_an_error(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DOVETAIL_CACHE_SIZE", "much")
    result = CliRunner().invoke(app, ["cache"])
    assert result.exit_code == 2


@pytest.mark.slow
def test_a_second_picture_is_painted_without_a_trace(cache: Path, traced: list[str], tmp_path: Path) -> None:
    pictures: list[Any] = []
    for name in ("one.png", "two.png"):
        before = len(traced)
        done("generate", "a red circle", "--steps", "2", "-o", str(tmp_path / name))
        traces.wait()
        pictures.append(((tmp_path / name).read_bytes(), len(traced) - before))
    (first, count), (second, again) = pictures
    assert first == second
    assert count > 0
    assert again == 0
    kept = Counter(one.path.suffix for one in folder.entries())
    assert kept[".trace"] == count
    assert kept[".program"] >= count, "what passes made of each"


@pytest.mark.parametrize(
    ("seconds", "told"), [(5, "just now"), (70, "1 minute ago"), (7300, "2 hours ago"), (90000, "1 day ago")]
)
def test_an_age_is_told_in_the_largest_unit(seconds: float, told: str) -> None:
    assert _age(time.time() - seconds) == told


def test_a_size_that_is_none_names_its_variable(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DOVETAIL_CACHE_SIZE", "lots")
    with pytest.raises(SpecError, match="DOVETAIL_CACHE_SIZE says how large the cache may grow: 'lots' is not a size"):
        folder.limit()


def test_a_file_in_the_place_of_the_folder_is_said_once(
    cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "file").write_bytes(b"")
    monkeypatch.setenv("DOVETAIL_CACHE_DIR", str(tmp_path / "file"))
    dovetail.compile(torch.nn.Linear(2, 2), (torch.ones(1, 2),), backend="cpu")
    traces.wait()
    assert [one.message.partition(":")[0] for one in caplog.records if one.levelname == "WARNING"] == [
        f"traces are not kept in {tmp_path / 'file'}"
    ]
