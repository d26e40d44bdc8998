"""Imports what a trace needs before the first one, where no interrupt can leave it half imported.

torch.export imports a large part of torch when it is first called. When an import is interrupted, Python forgets the
module, but keeps what that had imported by then, and does not put it into the module again: every later trace of the
process would fail.
"""

from __future__ import annotations

import contextlib
import functools
import signal
import threading
from collections.abc import Iterator
from types import FrameType

import torch
from torch import nn

from .trace_lock import alone


@functools.cache
def import_for_traces() -> None:
    """Traces the least that there is, once a process; an interrupt that comes meanwhile is raised at the end."""
    size = {"x": {0: torch.export.Dim("size")}}
    with alone(), interrupt_deferred(), torch.no_grad():
        torch.export.export(_Least(), (torch.empty(2),), dynamic_shapes=size, strict=False)


@contextlib.contextmanager
def interrupt_deferred() -> Iterator[None]:
    """Has an interrupt (Ctrl-C) that comes meanwhile come at the end; only the main thread gets any."""
    handler = signal.getsignal(signal.SIGINT)
    if threading.current_thread() is not threading.main_thread() or not callable(handler):
        yield
        return
    came: list[int] = []

    def note(number: int, _: FrameType | None) -> None:
        came.append(number)

    try:
        signal.signal(signal.SIGINT, note)
        yield
    finally:
        signal.signal(signal.SIGINT, handler)
        if came:
            signal.raise_signal(signal.SIGINT)


class _Least(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + 1
