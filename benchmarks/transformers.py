"""Compares classes of transformers over three simulated devices with eager: ``python -m benchmarks.transformers``.

A row a class: whether it is compiled whole or by its parts, and what its first call, other values and another size
gave: ``equal`` in all that eager returns, the sentence in which it was refused, or the first difference, with ``as was
said`` where a line named its cause before. Each is traced
with an empty cache. With names only those; ``--draw 6 --seed 1`` takes six of them by a seed.
"""

from __future__ import annotations

import argparse
import logging
import random
import time
import warnings
from collections import Counter

import transformers

from dovetail.runtime import sim
from testbed.zoo.compare_transformers import Outcome, compare
from testbed.zoo.of_transformers import CASES


def main() -> None:
    """Prints the table of the classes named, of those drawn, or of all."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.transformers")
    parser.add_argument("names", nargs="*")
    parser.add_argument("--draw", type=int, default=len(CASES))
    parser.add_argument("--seed", type=int, default=0)
    asked = parser.parse_args()
    names = asked.names or sorted(random.Random(asked.seed).sample(sorted(CASES), asked.draw))
    logging.getLogger("dovetail").propagate = False
    logging.getLogger("dovetail.cache.traces").setLevel(logging.INFO)
    transformers.logging.set_verbosity_error()
    warnings.simplefilter("ignore")
    sim.enable()
    counts: Counter[str] = Counter()
    print("| class | compiled | first call | other values | another size | seconds |\n|---|---|---|---|---|---|")
    for name in names:
        started = time.process_time()
        outcome = compare(name)
        counts[_kind(outcome)] += 1
        row = (name, outcome.how, outcome.first, outcome.values, outcome.size)
        print("|", " | ".join(row), f"| {time.process_time() - started:.1f} |", flush=True)
    print(f"\n{len(names)} classes:", ", ".join(f"{count} {kind}" for kind, count in counts.most_common()))


def _kind(outcome: Outcome) -> str:
    if not outcome.is_right:
        return "wrong"
    if outcome.is_named:
        return "other than eager as was said"
    return f"{outcome.how} and equal" if outcome.how else "refused"


if __name__ == "__main__":
    main()
