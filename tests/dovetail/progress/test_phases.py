"""What is told of the phases of a call."""

from __future__ import annotations

from dovetail.progress.phases import Phases, begin, note_read, phase


def test_the_innermost_phase_counts_and_the_outer_goes_on() -> None:
    told: list[str] = []
    phases = Phases(told.append)
    with phases.watching():
        begin("sampling")
        with phase("reading"):
            note_read(5)
        begin("decoding")
    assert told == ["sampling", "reading", "sampling", "decoding"]
    assert list(phases.seconds) == ["sampling", "reading", "decoding"]
    assert phases.bytes_read == 5


def test_nobody_needs_to_be_watching() -> None:
    begin("sampling")
    with phase("reading"):
        note_read(5)


def test_what_comes_after_the_call_does_not_count() -> None:
    phases = Phases()
    with phases.watching():
        begin("sampling")
    counted = dict(phases.seconds)
    begin("decoding")
    assert phases.seconds == counted
