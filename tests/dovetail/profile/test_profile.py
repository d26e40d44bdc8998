"""Profiles: what was measured stands beside what was predicted, in a form that Perfetto opens."""

from __future__ import annotations

import json
from collections import defaultdict
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn
from typer.testing import CliRunner

import dovetail
from dovetail.cli.app import app
from dovetail.compiler.devices.device import Device
from dovetail.compiler.devices.measured_speeds import measured_host
from dovetail.compiler.devices.rig import Rig
from dovetail.compiler.devices.speeds import speeds_of
from dovetail.compiler.errors import UsageError
from dovetail.compiler.ir.program import Program
from dovetail.compiler.ir.schedule import Copy, Load, Run
from dovetail.components.compiled import CompiledModule
from dovetail.fitting.decide import speeds_here, speeds_rehearsed
from dovetail.profile.chrome import MEASURED, PREDICTED, Slice, read_trace, trace_of
from dovetail.profile.compare import Compared, compared
from dovetail.profile.saved import saved
from dovetail.profile.sides import _measured, predicted_slices, slices_of
from dovetail.runtime.devices.recording import Measured, MeasuredCall, Recording, recording

X = torch.ones(4, 64)


def compiled(**options: Any) -> CompiledModule:
    layers = nn.Sequential(*(nn.Linear(64, 64) for _ in range(8))).eval()
    return dovetail.compile(layers, (X,), backend="sim0&sim1", rig="sim0=1MiB,sim1=1MiB", **options)


def measured(module: CompiledModule, calls: int = 2) -> Recording:
    module(X)
    with recording() as found:
        for _ in range(calls):
            module(X)
    return found


def both(module: CompiledModule) -> list[Slice]:
    return slices_of(measured(module), {module.program: "layers"}, speeds_of(module.rig))


def check_format(document: dict[str, Any]) -> None:
    """The rules of Chrome's trace event format for what is written: names, times, and slices that nest."""
    events = document["traceEvents"]
    named = {(one["name"], one["pid"], one["tid"]) for one in events if one["ph"] == "M"}
    lanes: dict[tuple[int, int], list[tuple[int, int]]] = defaultdict(list)
    for one in events:
        assert {"ph", "name", "pid", "tid"} <= one.keys()
        if one["ph"] == "M":
            assert one["args"]["name"]
            continue
        assert one["ph"] == "X"
        assert one["ts"] >= 0
        assert one["dur"] >= 0
        assert {("process_name", one["pid"], 0), ("thread_name", one["pid"], one["tid"])} <= named
        start, length = (round(1000 * one[key]) for key in ("ts", "dur"))
        assert (start / 1000, length / 1000) == (one["ts"], one["dur"]), "times are whole nanoseconds"
        lanes[one["pid"], one["tid"]].append((start, start + length))
    for spans in lanes.values():
        ends: list[int] = []
        for start, end in sorted(spans, key=lambda span: (span[0], -span[1])):
            while ends and ends[-1] <= start:
                ends.pop()
            assert not ends or end <= ends[-1], "slices of a lane nest, or follow each other"
            ends.append(end)


@pytest.mark.parametrize("rests", [None, "cpu"])
def test_both_sides_have_the_segments_copies_and_loads_of_the_plan_by_the_same_names(rests: str | None) -> None:
    module = compiled(params_backend=rests)
    sides: dict[str, set[tuple[str, str]]] = {PREDICTED: set(), MEASURED: set()}
    for one in both(module):
        sides[one.group].add((one.lane, one.what))
    flat = list(module.schedule.flat())
    wanted = {(str(one.device), f"segment {one.segment.index}") for one in flat if isinstance(one, Run)}
    wanted |= {(f"{one.source} to {one.target}", str(one.sent)) for one in flat if isinstance(one, Copy)}
    wanted |= {
        (f"loads to {one.device}", f"load {one.number}") for one in flat if isinstance(one, Load) and one.slot >= 0
    }
    assert sides[PREDICTED] == sides[MEASURED] == {*wanted, ("calls", "layers")}


@pytest.mark.parametrize("rests", [None, "cpu"])
def test_a_trace_keeps_the_rules_of_its_format_and_reads_back(rests: str | None, tmp_path: Path) -> None:
    slices = both(compiled(params_backend=rests))
    document = trace_of(slices)
    check_format(document)
    (tmp_path / "p.json").write_text(json.dumps(document))
    again = read_trace(tmp_path / "p.json")
    assert [(one.group, one.lane, one.what, one.program) for one in again] == [
        (one.group, one.lane, one.what, one.program) for one in slices
    ]
    assert [one.start for one in again] == pytest.approx([one.start for one in slices], abs=1e-9)


def test_what_is_predicted_has_the_length_that_the_plan_has() -> None:
    module = compiled()
    rows = {(one.lane, one.what): one for one in compared(both(module))}
    alone = {(one.lane, one.what): one.end - one.start
             for one in predicted_slices({"layers": module.program}, speeds_of(module.rig))}  # fmt: skip
    assert {key: row.predicted for key, row in rows.items()} == pytest.approx(alone)
    assert all(row.calls == 2 and row.measured is not None and row.measured > 0 for row in rows.values())


def test_nothing_is_noted_where_nobody_records() -> None:
    found = measured(compiled(), calls=0)
    assert found == Recording()


def test_pytorch_s_profiler_sees_segments_by_their_names() -> None:
    module = compiled()
    module(X)
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as seen:
        module(X)
    names = {one.key for one in seen.key_averages()}
    assert {"dovetail: Sequential", "dovetail: segment 0 on sim0", "dovetail: segment 1 on sim1"} <= names


@pytest.mark.parametrize("text", [None, "{}", "no json", '{"traceEvents": [{"ph": "X"}]}'])
def test_what_is_no_trace_is_refused(text: str | None, tmp_path: Path) -> None:
    if text is not None:
        (tmp_path / "p.json").write_text(text)
    with pytest.raises(UsageError, match="dovetail generate --profile"):
        read_trace(tmp_path / "p.json")


@pytest.mark.slow
def test_show_writes_what_is_predicted() -> None:
    result = CliRunner().invoke(app, ["show", "--as", "trace", "--backend", "sim0&sim1"])
    assert result.exit_code == 0, result.output
    document = json.loads(result.stdout)
    check_format(document)
    groups = {one["args"]["name"] for one in document["traceEvents"] if one["name"] == "process_name"}
    assert groups == {PREDICTED}


@pytest.mark.slow
def test_a_generation_is_profiled_and_its_profile_compared(tmp_path: Path) -> None:
    file = tmp_path / "p.json"
    options = ["--steps", "1", "--backend", "sim0&sim1", "-o", str(tmp_path / "o.png"), "--profile", str(file)]
    result = CliRunner().invoke(app, ["generate", "a circle", *options])
    assert result.exit_code == 0, result.output
    check_format(json.loads(file.read_text()))
    table = CliRunner().invoke(app, ["profile", str(file)]).stdout.splitlines()
    assert table[0].split()[:4] == ["component", "lane", "what", "calls"]
    assert any(line.startswith("transformer") and "segment 0" in line for line in table)
    rows = json.loads(CliRunner().invoke(app, ["profile", str(file), "--json"]).stdout)
    assert all(row["measured"] and row["predicted"] is not None for row in rows)


@dataclass(frozen=True)
class Named:
    """What a call knows of its program."""

    name: str


@given(st.lists(st.tuples(st.integers(0, 9), st.integers(0, 9)), max_size=6), st.lists(st.integers(0, 20), max_size=9))
def test_what_is_measured_belongs_to_the_latest_call_that_it_began_in(
    lengths: list[tuple[int, int]], moments: list[int]
) -> None:
    """Calls of several threads overlap, and one may be within another."""
    calls = [
        MeasuredCall(cast("Program", Named(str(number))), start, start + length)
        for number, (start, length) in enumerate(sorted(lengths))
    ]
    spans = [Measured("sim0", "segment", moment, moment + 1) for moment in moments]
    found = [one for one in _measured(calls, spans, {}, 0) if one.lane == "sim0"]
    assert [one.start for one in found] == sorted(moments)
    for one in found:
        within = [call for call in calls if call.start <= one.start <= call.end]
        latest = {call.program.name for call in within if call.start == within[-1].start}
        assert one.program in (latest or {""})


ROWS = [
    Compared("m", "sim0", "segment 0", 2, 1e-9, 0.5),
    Compared("m", "cpu", "segment 1", 2, 0.1, 0.3),
    Compared("m", "cpu", "segment 2", 2, 0.1, 0.1),
    Compared("m", "calls", "m", 2, 0.2, 0.4),
]


def test_a_ratio_to_next_to_nothing_is_none() -> None:
    assert [row.ratio for row in ROWS] == [None, pytest.approx(3), 1, 2]


def test_simulated_devices_are_predicted_as_fast_as_the_processor_that_computes_for_them() -> None:
    rig = Rig.parse("sim0=16GiB,cpu=16GiB")
    rehearsed, card = speeds_rehearsed(rig), speeds_of(rig)
    assert rehearsed[Device("sim")].flops == rehearsed[Device("cpu")].flops
    assert card[Device("sim")].flops["float32"] > 10 * rehearsed[Device("sim")].flops["float32"]


def test_a_saved_profile_feeds_the_next_plans(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DOVETAIL_CACHE", "1")
    monkeypatch.setenv("DOVETAIL_CACHE_DIR", str(tmp_path))
    measured_host.cache_clear()
    rig = Rig.detect(())
    before = speeds_here(rig)[rig.host]
    (told,) = saved(ROWS)
    assert "cpu computes 2.00 times as long" in told
    after = speeds_here(rig)[rig.host]
    assert after.flops["float32"] == pytest.approx(before.flops["float32"] / 2)
    measured_host.cache_clear()


@pytest.mark.parametrize("rows", [[], ROWS[:1], ROWS[3:]])
def test_a_profile_that_measured_no_real_device_cannot_be_saved(rows: list[Compared]) -> None:
    with pytest.raises(UsageError, match="real devices"):
        list(saved(rows))


def test_a_card_that_is_not_here_cannot_be_saved() -> None:
    with pytest.raises(UsageError, match="cuda7"):
        list(saved([Compared("m", "cuda7", "segment 0", 1, 0.1, 0.2)]))


def test_the_command_saves_what_a_profile_measured(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "p.json"
    file.write_text(json.dumps(trace_of(both(compiled()))))
    found = CliRunner().invoke(app, ["profile", str(file), "--save"])
    assert found.exit_code == 2
    assert "the profile measured" in found.stderr
