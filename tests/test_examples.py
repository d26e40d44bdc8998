"""The scripts of examples/, run as somebody would who has just cloned the project."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

HOME = Path(__file__).resolve().parents[1]
EXAMPLES = sorted((HOME / "examples").glob("*.py"))


def test_there_are_six_examples() -> None:
    assert len(EXAMPLES) == 6


@pytest.mark.slow
@pytest.mark.parametrize("script", EXAMPLES, ids=lambda one: one.stem)
def test_an_example_runs(script: Path, tmp_path: Path) -> None:
    environment = {**os.environ, "PYTHONPATH": str(HOME)}
    done = subprocess.run(
        [sys.executable, script], cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=300
    )
    assert done.returncode == 0, done.stderr[-2000:]
    assert done.stdout.strip()
