"""Writes time lines in Chrome's trace event format, which Perfetto (ui.perfetto.dev) opens, and reads them back.

A group of tracks is a process of the trace, a lane a thread of it. Times are microseconds since the trace began, in
whole nanoseconds: of slices that overlap by one, a reader drops one.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, ValidationError

from ..compiler.errors import UsageError

PREDICTED, MEASURED = "predicted", "measured"
_MICRO, _NANO = 1e6, 1e9


@dataclass(frozen=True, slots=True)
class Slice:
    """What a lane of a group of tracks does, from a second to another one, and in a call of what."""

    group: str
    lane: str
    what: str
    start: float
    end: float
    program: str = ""


class _Event(BaseModel):
    """One event: a slice (X), or the name of a process or thread (M)."""

    model_config = ConfigDict(extra="ignore")

    ph: Literal["X", "M"]
    name: str
    pid: int
    tid: int = 0
    ts: float = 0.0
    dur: float = 0.0
    args: dict[str, Any] = {}


class _File(BaseModel):
    model_config = ConfigDict(extra="ignore")

    traceEvents: list[_Event]
    displayTimeUnit: Literal["ms", "ns"] = "ms"


def trace_of(slices: Iterable[Slice]) -> dict[str, Any]:
    """The trace as a JSON document; the groups, and the lanes in each, are numbered as they come."""
    pids: dict[str, int] = {}
    tids: dict[tuple[str, str], int] = {}
    events: list[dict[str, Any]] = []
    for one in slices:
        pid = pids.setdefault(one.group, len(pids) + 1)
        tid = tids.setdefault((one.group, one.lane), len(tids) + 1)
        start, end = round(one.start * _NANO), round(one.end * _NANO)
        times = {"ts": start / 1000, "dur": (end - start) / 1000}
        event = {"ph": "X", "name": one.what, "pid": pid, "tid": tid, **times}
        events.append({**event, "cat": one.group, **({"args": {"program": one.program}} if one.program else {})})
    return {"traceEvents": [*_names(pids, tids), *events], "displayTimeUnit": "ms"}


def _names(pids: dict[str, int], tids: dict[tuple[str, str], int]) -> Iterator[dict[str, Any]]:
    for group, pid in pids.items():
        yield {"ph": "M", "name": "process_name", "pid": pid, "tid": 0, "args": {"name": group}}
    for (group, lane), tid in tids.items():
        yield {"ph": "M", "name": "thread_name", "pid": pids[group], "tid": tid, "args": {"name": lane}}


def read_trace(path: str | os.PathLike[str]) -> list[Slice]:
    """The slices of a trace that was written here. Raises UsageError where there is no such file, or it is no trace."""
    try:
        found = _File.model_validate_json(Path(path).read_bytes())
    except OSError as error:
        raise UsageError(f"cannot read {path}: {error.strerror}: write one with dovetail generate --profile") from error
    except (ValidationError, json.JSONDecodeError) as error:
        raise UsageError(f"{path} is no trace: name a file that dovetail generate --profile wrote") from error
    names = {(one.pid, one.tid, one.name): str(one.args.get("name", "")) for one in found.traceEvents if one.ph == "M"}
    return [
        Slice(
            names.get((one.pid, 0, "process_name"), ""),
            names.get((one.pid, one.tid, "thread_name"), ""),
            one.name,
            one.ts / _MICRO,
            (one.ts + one.dur) / _MICRO,
            str(one.args.get("program", "")),
        )
        for one in found.traceEvents
        if one.ph == "X"
    ]
