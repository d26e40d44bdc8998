"""How the time to compile grows with the number of blocks: ``python -m benchmarks.scaling [BLOCKS …]``.

A transformer on meta is split over four devices that are not there, by layers and by rows. Seconds are CPU seconds of
this process: tracing, all passes, and making the executor (code generation and steps). Nothing runs.
"""

from __future__ import annotations

import gc
import sys
import time
from collections.abc import Callable
from typing import Any

from testbed.scaling import make_executor, split, traced

BLOCKS = (15, 30, 60, 120)
HEAD = ("blocks", "split", "nodes", "segments", "instructions", "trace s", "passes s", "executor s")
ROW = "{:>6} {:>6} {:>7} {:>9} {:>13} {:>8} {:>9} {:>11}"


def _timed(call: Callable[[], Any]) -> tuple[Any, float]:
    gc.collect()
    start = time.process_time()
    result = call()
    return result, time.process_time() - start


def main(counts: list[int]) -> None:
    """Prints the table."""
    print(ROW.format(*HEAD))
    for count in counts or BLOCKS:
        base, tracing = _timed(lambda count=count: traced(count))  # type: ignore[misc]
        for mode in ("layer", "row"):
            program, passes = _timed(lambda base=base, mode=mode: split(base, mode))  # type: ignore[misc]
            _, making = _timed(lambda program=program: make_executor(program))  # type: ignore[misc]
            sizes = (len(program.graph.nodes), len(program.segments), len(program.schedule))
            times = (f"{seconds:.2f}" for seconds in (tracing, passes, making))
            print(ROW.format(count, mode, *sizes, *times), flush=True)


if __name__ == "__main__":
    main([int(count) for count in sys.argv[1:]])
