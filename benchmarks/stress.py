"""Calls over several devices that are interrupted, lack memory, fail, or meet: ``python -m benchmarks.stress``.

    python -m benchmarks.stress [--calls 200] [--seed N] [--ways layer …] [--faults "an interrupt" …]

Two simulated devices, and a tiny pipeline for each way in which they compute; see `testbed.stress`. Prints the seed,
how often each thing happened, and what was wrong. Exit code 1 if something was.
"""

from __future__ import annotations

import argparse
import random
import sys
import time

from testbed.stress import FAULTS, WAYS, Stress


def main() -> int:
    """Prints what came of the calls."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--calls", type=int, default=200)
    parser.add_argument("--seed", type=int, default=random.randrange(10**6))
    parser.add_argument("--ways", nargs="*", choices=list(WAYS), default=list(WAYS))
    parser.add_argument("--faults", nargs="*", choices=list(FAULTS), default=list(FAULTS))
    asked = parser.parse_args()
    print(f"seed {asked.seed}, {', '.join(asked.ways)}", flush=True)
    stress = Stress(asked.seed, asked.ways, asked.faults)
    begun = time.perf_counter()
    report = stress.run(asked.calls, lambda said: print(said, flush=True))
    print(f"{asked.calls} calls, each followed by one that must be right: {time.perf_counter() - begun:.0f} s")
    for what, count in sorted(report.counts.items()):
        print(f"{count:6} {what}")
    for one in report.wrong:
        print(f"WRONG  {one}")
    print(f"{len(report.wrong)} wrong")
    stress.end()
    return 1 if report.wrong else 0


if __name__ == "__main__":
    sys.exit(main())
