"""Interrupts the first trace of a process during one of its imports, and traces again; run by test_first_trace.py.

Each moment is a process of its own, forked after torch was imported.
"""

from __future__ import annotations

import os
import signal
import sys
from typing import Any

import torch
from torch import nn

from dovetail.compiler.frontend.trace import trace


class Interrupt:
    """Interrupts when the nth module is looked for; stands first among what finds modules."""

    def __init__(self, at: int) -> None:
        self.at, self.count = at, 0

    def find_spec(self, *_: Any) -> None:
        """Finds nothing."""
        self.count += 1
        if self.count == self.at:
            signal.raise_signal(signal.SIGINT)


def traces_after(interrupt: Interrupt) -> bool:
    """Whether the first trace is interrupted, and the next one succeeds."""
    sys.meta_path.insert(0, interrupt)  # type: ignore[arg-type]
    try:
        _trace()
    except KeyboardInterrupt:
        _trace()
        return True
    return False


def _trace() -> None:
    trace(nn.Sequential(nn.Linear(8, 8), nn.LayerNorm(8)).eval(), (torch.ones(2, 8),))


def _in_child(interrupt: Interrupt) -> bool:
    child = os.fork()
    if not child:
        done = False
        try:
            done = traces_after(interrupt)
        finally:
            os._exit(not done)
    return os.waitpid(child, 0)[1] == 0


if __name__ == "__main__":
    signal.signal(signal.SIGINT, signal.default_int_handler)  # what was started in the background ignores interrupts
    failed = [at for at in map(int, sys.argv[1:]) if not _in_child(Interrupt(at))]
    sys.exit(f"failed after an interrupt at these imports: {failed}" if failed else 0)
