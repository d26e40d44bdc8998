"""How the time to compile grows with the number of blocks: ``python -m benchmarks.scaling [BLOCKS | NAME …]``.

A transformer on meta is split over four devices that are not there, by layers and by rows; so is a published model of
full size that is given by name (``flux-dev``). Instructions are counted with the actions of steps; entries are those of
the schedule, where a run is one. Seconds are CPU seconds of this process: tracing, all passes, and making the executor
(code generation and steps). Nothing runs.
"""

from __future__ import annotations

import gc
import sys
import time
from collections.abc import Callable
from typing import Any

from dovetail.compiler.ir.program import Program
from dovetail.compiler.ir.schedule import Step
from testbed.scaling import make_executor, split, told_of_unknown, traced
from testbed.zoo.full_size import FULL_SIZE, trace_entry

BLOCKS = (15, 30, 60, 120)
HEAD = ("blocks", "split", "nodes", "segments", "instructions", "entries", "trace s", "passes s", "executor s")
ROW = "{:>8} {:>6} {:>7} {:>9} {:>13} {:>8} {:>8} {:>9} {:>11}"


def _timed(call: Callable[[], Any]) -> tuple[Any, float]:
    gc.collect()
    start = time.process_time()
    result = call()
    return result, time.process_time() - start


def main(subjects: list[str]) -> None:
    """Prints the table; ends with one line where something is neither a number of blocks nor a name of a model."""
    wrong = told_of_unknown(subjects, FULL_SIZE)
    if wrong:
        raise SystemExit(wrong)
    print(ROW.format(*HEAD))
    for subject in subjects or map(str, BLOCKS):
        base, tracing = _timed(lambda subject=subject: _trace(subject))  # type: ignore[misc]
        for mode in ("layer", "row"):
            program, passes = _timed(lambda base=base, mode=mode: split(base, mode))  # type: ignore[misc]
            _, making = _timed(lambda program=program: make_executor(program))  # type: ignore[misc]
            instructions = sum(not isinstance(one, Step) for one in program.schedule.flat())
            sizes = (len(program.graph.nodes), len(program.segments), instructions, len(program.schedule))
            times = (f"{seconds:.2f}" for seconds in (tracing, passes, making))
            print(ROW.format(subject, mode, *sizes, *times), flush=True)


def _trace(subject: str) -> Program:
    """A transformer of so many blocks, or a published model, for devices that hold any."""
    return traced(int(subject)) if subject.isdecimal() else trace_entry(FULL_SIZE[subject])[0]


if __name__ == "__main__":
    main(sys.argv[1:])
