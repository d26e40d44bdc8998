"""Has reads of files go wrong, in tests."""

from __future__ import annotations

import time
from collections.abc import Callable

import pytest

from dovetail.runtime.store.opened_file import OpenedFile


class Reads:
    """Counts reads of files, and has one of them, or every one, go another way."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.count, self.at, self.how = 0, -1, ""
        self.every = False
        self.stall: Callable[[], None] = lambda: time.sleep(0.2)
        original = OpenedFile._read_some

        def read(file: OpenedFile, start: int, memory: memoryview) -> int:
            self.count += 1
            if self.count != self.at and not self.every:
                return original(file, start, memory)
            if self.how == "fails":
                raise OSError("the disk is gone")
            if self.how == "ends":
                return 0
            if self.how == "stalls":
                self.stall()
            return original(file, start, memory[: max(1, len(memory) // 2)] if self.how == "short" else memory)

        monkeypatch.setattr(OpenedFile, "_read_some", read)
