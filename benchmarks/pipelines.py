"""Compares diffusers pipelines on simulated devices with themselves: `python -m benchmarks.pipelines [NAME …]`.

Prints a row a pipeline and a column for one, two and three devices: `equal` to the bit over the same memory, or what
else happened. A pipeline that takes longer than ten minutes is given up, and the next one goes on.
"""

from __future__ import annotations

import logging
import signal
import sys
import time
from typing import Any, NoReturn

from dovetail.runtime import sim
from testbed.pipelines.every_pipeline import DEVICES, EVERY_PIPELINE, compare

LIMIT = 600  # seconds a pipeline


def _late(*_: Any) -> NoReturn:
    raise TimeoutError(f"not done after {LIMIT} s")


def main() -> None:
    """Prints the table of the pipelines named, or of all."""
    logging.disable(logging.WARNING)
    sim.enable()
    signal.signal(signal.SIGALRM, _late)
    names = sys.argv[1:] or list(EVERY_PIPELINE)
    print("| pipeline |", " | ".join(DEVICES), "| seconds |", flush=True)
    print("|---|" + "---|" * (len(DEVICES) + 1), flush=True)
    good = 0
    for name in names:
        start = time.process_time()
        signal.alarm(LIMIT)
        found = compare(name)
        signal.alarm(0)
        good += set(found.values()) == {"equal"}
        print(f"| {name} |", " | ".join(found.values()), f"| {time.process_time() - start:.1f} |", flush=True)
    print(f"\n{good} of {len(names)} are equal to eager on all of them", flush=True)


if __name__ == "__main__":
    main()
