"""All full-size entries, the compiling of one for devices that are not here, and what is measured on the way."""

from __future__ import annotations

import gc
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TypeVar

from dovetail.compiler.devices.device import Device
from dovetail.compiler.devices.rig import Rig
from dovetail.compiler.frontend.trace import trace
from dovetail.compiler.ir.program import Program
from dovetail.passes.analysis.liveness import live_bytes
from dovetail.passes.analysis.scratch import scratch_bytes
from dovetail.passes.infra.base import Change, Pass
from dovetail.passes.infra.manager import PassManager
from dovetail.passes.pipeline import default_passes
from dovetail.passes.rewrites.simplify import Simplify

from . import full_size_diffusion, full_size_encoders
from .full_size_diffusion import deepened
from .meta import FULL_SIZE, FullSize

TABLES = (full_size_diffusion, full_size_encoders)
SHARES = {2: (0.9, 0.6), 4: (0.8, 0.6, 0.4, 0.2)}
"""Memory of unequal devices as multiples of a model's weights: no device holds it alone."""

T = TypeVar("T")


@dataclass
class Clock:
    """CPU seconds of what it is asked to run, and of each pass."""

    seconds: float = 0.0
    passes: dict[str, float] = field(default_factory=dict)
    _last: float = 0.0

    def run(self, work: Callable[[], T]) -> T:
        gc.collect()  # what tracing left behind is not for the next step to clear away
        self._last = start = time.process_time()
        try:
            return work()
        finally:
            self.seconds = time.process_time() - start

    def note(self, step: Pass, program: Program, change: Change) -> None:
        """A callback of the pass manager."""
        now = time.process_time()
        self.passes[step.name] = now - self._last
        self._last = now


def trace_entry(entry: FullSize) -> tuple[Program, float]:
    """The program of an entry, and the CPU seconds that tracing took."""
    module, call = entry.make()
    clock = Clock()
    return clock.run(lambda: trace(module, (), call)), clock.seconds


def compile_entry(program: Program, count: int, rig: Rig | None = None) -> tuple[Program, Clock]:
    """A copy of a fresh program after all passes, over unequal devices that its weights just fit on."""
    copy = program.copy()
    copy.rig = rig or rigs_for(program)[count]
    clock = Clock()
    clock.run(lambda: PassManager(default_passes(), [clock.note]).run(copy))
    return copy, clock


def rigs_for(program: Program) -> dict[int, Rig]:
    """The devices that a program just fits on, by how many they are; what it takes is looked at once for all."""
    simple = program.copy()
    Simplify().run(simple)
    weights = sum(weight.nbytes for weight in simple.weights.values())
    card = Device.named("cuda0")
    headroom = max(live + scratch_bytes(simple, node, card) for node, live in live_bytes(simple))
    return {
        count: Rig.of(**{f"cuda{i}": int(share * weights) + headroom + 2**20 for i, share in enumerate(shares)})
        for count, shares in SHARES.items()
    }


__all__ = [
    "FULL_SIZE",
    "Clock",
    "FullSize",
    "compile_entry",
    "deepened",
    "rigs_for",
    "trace_entry",
]
