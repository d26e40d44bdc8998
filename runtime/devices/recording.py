"""Notes when segments ran, values were sent and weights came; PyTorch's profiler sees the same under the same names.

A lane is a device, ``loads to cuda0`` or ``cuda0 to cuda1``, as in a predicted time line. Where nobody records and no
profiler runs, that costs one look. On a device that computes behind the host, what is recorded is waited for: lengths
are those of the device, and nothing overlaps that is on one lane. A profiler is waited for by nobody.
"""

from __future__ import annotations

import contextlib
import functools
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import torch

from ...compiler.ir.program import Program


@dataclass(frozen=True, slots=True)
class Measured:
    """What a lane did from a second to another one, by the clock ``time.perf_counter``."""

    lane: str
    what: str
    start: float
    end: float


@dataclass(frozen=True, slots=True)
class MeasuredCall:
    """A call of a program, from a second to another one."""

    program: Program
    start: float
    end: float


@dataclass
class Recording:
    """What was seen so far, by whatever thread did it."""

    spans: list[Measured] = field(default_factory=list)
    calls: list[MeasuredCall] = field(default_factory=list)


_now: Recording | None = None


@contextlib.contextmanager
def recording() -> Iterator[Recording]:
    """Records what all threads of the process do meanwhile; one recording goes on at a time."""
    global _now
    before, _now = _now, Recording()
    try:
        yield _now
    finally:
        _now = before


def is_watched() -> bool:
    """Whether somebody records, or a profiler of PyTorch's runs."""
    return _now is not None or torch._C._autograd._profiler_enabled()


@contextlib.contextmanager
def span(lane: str, what: str, settled: Callable[[], object]) -> Iterator[None]:
    """Notes what a lane does meanwhile; ``settled`` waits until the device has done it, where that is recorded."""
    held = _now
    with torch.profiler.record_function(f"dovetail: {what} on {lane}"):
        start = time.perf_counter()
        yield
        if held is not None:
            settled()
            held.spans.append(Measured(lane, what, start, time.perf_counter()))


@contextlib.contextmanager
def call(program: Program) -> Iterator[None]:
    """Notes a call of a program."""
    held = _now
    with torch.profiler.record_function(f"dovetail: {program.name}"):
        start = time.perf_counter()
        yield
        if held is not None:
            held.calls.append(MeasuredCall(program, start, time.perf_counter()))


def spanned(
    lane: str, what: str, act: Callable[..., Any], settled: Callable[[Any], object] = lambda result: None
) -> Callable[..., Any]:
    """A function that is noted where somebody watches; ``settled`` takes its result."""

    @functools.wraps(act)
    def watched(*args: Any, **kwargs: Any) -> Any:
        if not is_watched():
            return act(*args, **kwargs)
        result: list[Any] = []
        with span(lane, what, lambda: settled(result[0])):
            result.append(act(*args, **kwargs))
        return result.pop()

    return watched
