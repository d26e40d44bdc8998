"""Compares diffusers pipelines on simulated devices, or on a card, with themselves.

    python -m benchmarks.pipelines [--card cuda0] [NAME …]

Prints a row a pipeline and a column for one, two and three simulated devices, or for the card: `equal` to the bit over
the same memory, or what else happened. With a card eager runs there too. A pipeline that takes longer than ten minutes
is given up, and the next one goes on.
"""

from __future__ import annotations

import argparse
import logging
import signal
import time
from typing import Any, NoReturn

from dovetail.runtime import sim
from testbed.pipelines.every_pipeline import DEVICES, EVERY_PIPELINE, compare

LIMIT = 600  # seconds a pipeline


def _late(*_: Any) -> NoReturn:
    raise TimeoutError(f"not done after {LIMIT} s")


def main() -> None:
    """Prints the table of the pipelines named, or of all."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", metavar="NAME")
    parser.add_argument("--card", help="a real device")
    options = parser.parse_args()
    logging.disable(logging.WARNING)
    sim.enable()
    signal.signal(signal.SIGALRM, _late)
    names = options.names or list(EVERY_PIPELINE)
    devices = (options.card,) if options.card else DEVICES
    print("| pipeline |", " | ".join(devices), "| seconds |", flush=True)
    print("|---|" + "---|" * (len(devices) + 1), flush=True)
    good = 0
    for name in names:
        start = time.process_time()
        signal.alarm(LIMIT)
        found = compare(name, devices, options.card or "cpu")
        signal.alarm(0)
        good += set(found.values()) == {"equal"}
        print(f"| {name} |", " | ".join(found.values()), f"| {time.process_time() - start:.1f} |", flush=True)
    print(f"\n{good} of {len(names)} are equal to eager on all of them", flush=True)


if __name__ == "__main__":
    main()
