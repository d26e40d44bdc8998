"""Files are read into the page cache beside other work: all of them, once, and only where there is room."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

from dovetail.runtime.store import page_cache


@pytest.fixture
def read(monkeypatch: pytest.MonkeyPatch) -> list[tuple[int, int]]:
    """The place and the length of each read."""
    found: list[tuple[int, int]] = []
    own = os.preadv

    def counted(file: int, buffers: Any, at: int, flags: int = 0) -> int:
        if flags:
            return own(file, buffers, at, flags)
        got = own(file, buffers, at)
        found.append((at, got))
        return got

    monkeypatch.setattr(os, "preadv", counted)
    return found


def file_of(folder: Path, name: str, size: int) -> Path:
    path = folder / name
    path.write_bytes(bytes(size))
    return path


def test_every_byte_that_is_not_there_is_read_once(
    tmp_path: Path, read: list[tuple[int, int]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(page_cache, "_is_cached", lambda *_: False)
    sizes = (page_cache._WINDOW * 2 + 5, 7)
    thread = page_cache.warm([file_of(tmp_path, str(size), size) for size in sizes], sum(sizes))
    assert thread is not None
    thread.join()
    assert sum(got for _, got in read) == sum(sizes)
    assert len(read) == 4


def test_what_is_there_is_not_read_again(
    tmp_path: Path, read: list[tuple[int, int]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(page_cache, "_is_cached", lambda _, at: at < page_cache._WINDOW)
    thread = page_cache.warm([file_of(tmp_path, "weights", 2 * page_cache._WINDOW)], 2**40)
    assert thread is not None
    thread.join()
    assert read == [(page_cache._WINDOW, page_cache._WINDOW)]


def test_files_that_take_more_than_there_is_are_left(tmp_path: Path, read: list[tuple[int, int]]) -> None:
    assert page_cache.warm([file_of(tmp_path, "weights", 100)], 99) is None
    assert page_cache.warm([tmp_path / "nowhere"], 2**40) is None
    assert read == []


def test_a_file_that_vanishes_stops_nothing(
    tmp_path: Path, read: list[tuple[int, int]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(page_cache, "_is_cached", lambda *_: False)
    first, second = file_of(tmp_path, "first", 10), file_of(tmp_path, "second", 20)
    own = os.open

    def opened(path: Any, *more: Any, **named: Any) -> int:
        if path == first:
            raise FileNotFoundError(path)
        return own(path, *more, **named)

    monkeypatch.setattr(os, "open", opened)
    thread = page_cache.warm([first, second], 2**40)
    assert thread is not None
    thread.join()
    assert read == [(0, 20)]


def test_of_a_range_what_is_not_there_is_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    window, read = page_cache._WINDOW, []

    def noted(_: int, buffers: Any, at: int) -> int:
        read.append((at, len(buffers[0])))
        return len(buffers[0])

    monkeypatch.setattr(page_cache, "_is_cached", lambda _, at: at < 2 * window)
    monkeypatch.setattr(os, "preadv", noted)
    with file_of(tmp_path, "weights", 4 * window).open("rb") as file:
        page_cache.read_uncached(file.fileno(), 5, 3 * window + 9)
    assert read == [(window + 5, window), (2 * window + 5, window), (3 * window + 5, 4)]
