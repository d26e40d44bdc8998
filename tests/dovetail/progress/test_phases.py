"""What is told of the phases of a call."""

from __future__ import annotations

import re
from pathlib import Path

import torch
from safetensors.torch import save_file

from dovetail.cli.output.figures import document_of, line_of
from dovetail.compiler.checkpoints.index import WeightIndex
from dovetail.progress.phases import Phases, begin, note_read, phase
from dovetail.runtime.store.reader import WeightReader


def test_the_innermost_phase_counts_and_the_outer_goes_on() -> None:
    told: list[str] = []
    phases = Phases()
    with phases.watching():
        begin("sampling")
        told.append(phases.describe())
        with phase("reading"):
            note_read(5)
            told.append(phases.describe())
        told.append(phases.describe())
        begin("decoding")
        told.append(phases.describe())
    assert told == ["sampling", "reading", "sampling", "decoding"]
    assert list(phases.seconds) == ["sampling", "reading", "decoding"]
    assert phases.bytes_read == 5


def test_while_files_are_read_it_is_told_how_much_so_far(tmp_path: Path) -> None:
    path = tmp_path / "w.safetensors"
    save_file({"w": torch.ones(2**18)}, path)
    phases = Phases()
    with phases.watching(), phase("reading"):
        WeightReader().read_into(WeightIndex.of_file(path)["w"], torch.empty(2**18))
        assert re.fullmatch(r"reading 1\.0 MiB \([0-9.]+ [KMGT]iB/s\)", phases.describe())


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


def test_what_is_streamed_while_sampling_counts_for_sampling(tmp_path: Path) -> None:
    path = tmp_path / "w.safetensors"
    save_file({"w": torch.ones(2**18)}, path)
    phases = Phases()
    with phases.watching():
        begin("sampling")
        WeightReader().read_into(WeightIndex.of_file(path)["w"], torch.empty(2**18))
        begin("decoding")
    assert phases.read_during == {"sampling": 2**20, "decoding": 0}
    assert "sampling 0.0 s (and 1.0 MiB read), decoding 0.0 s; peak: " in line_of(phases, {"process": 1})
    assert document_of(phases, {})["read_during"] == {"sampling": 2**20}
