"""By whatever way a forward reaches what was edited between two processes, the trace of before is not taken."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from . import ways


def _process(folder: Path, number: str) -> dict[str, tuple[bool, bool, float]]:
    ways.write(folder / "models", number)
    environment = {
        **os.environ,
        "DOVETAIL_CACHE": "1",
        "DOVETAIL_CACHE_DIR": str(folder / "kept"),
        "PYTHONDONTWRITEBYTECODE": "1",
        "WAYS_NUMBER": number,
        "WAYS_A": number,
    }
    done = subprocess.run(
        [sys.executable, ways.__file__, str(folder / "models"), number], env=environment, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr[-2000:]
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return found


@pytest.mark.slow
def test_no_way_to_an_edited_number_finds_the_trace_of_before(tmp_path: Path) -> None:
    """Three processes: one traces all, one takes what can be told, and one runs after every file was edited."""
    first, again = _process(tmp_path, "2.0"), _process(tmp_path, "2.0")
    edited = _process(tmp_path, "3.0")
    print()
    for name in ways.WAYS:
        kept = "traced each time" if again[name][0] else "taken from disk"
        print(f"{name:42} unchanged: {kept:16} edited: {'equal' if edited[name][1] else 'STALE'}")
    assert all(equal for run in (first, again, edited) for _, equal, _ in run.values())
    assert {name for name in ways.WAYS if first[name][2] == edited[name][2]} == set()
    uncached = {name for name in ways.WAYS if again[name][0]}
    assert uncached == {"eval", "exec", "subclasses of a class", "importlib", "a file of numbers"}
