"""What a command tells of its progress where nobody looks at a terminal."""

import threading
import time

import pytest

from dovetail.cli.output import progress as module
from dovetail.cli.output.progress import progress


def test_a_log_gets_lines_that_say_the_phase_and_the_steps(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "FIRST", 0.01)
    phases = iter(["", "sampling"])
    with progress("planning", 3, lambda: next(phases, "decoding")) as advance:
        advance()
        told = _wait_for("decoding", capsys)
    assert "planning 1 of 3, 0 s so far" in told
    assert "sampling 1 of 3" in told


def _wait_for(word: str, capsys: pytest.CaptureFixture[str]) -> str:
    told = ""
    while word not in told:
        told += capsys.readouterr().err
        time.sleep(0.01)
    return told


def test_a_log_of_short_work_has_no_line_and_no_thread_stays(capsys: pytest.CaptureFixture[str]) -> None:
    before = threading.active_count()
    with progress("planning") as advance:
        advance()
    assert capsys.readouterr().err == ""
    assert threading.active_count() == before


def test_steps_are_told_only_while_they_are_being_taken(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "FIRST", 0.01)
    with progress("decoding", 1) as advance:
        advance()
        told = _wait_for("decoding", capsys)
    assert "decoding, 0 s so far" in told
