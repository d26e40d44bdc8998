"""How long the weights of a published file take to find: ``python -m benchmarks.names``.

For full-size models: how many tensors their published files have, how many weights diffusers' class has, of how many
ranges of the file these are made, and the median of five searches, in milliseconds. No file is needed: names and shapes
are enough.
"""

from __future__ import annotations

import statistics
import time
from pathlib import Path

import torch

from dovetail.weights.name_matching import Wanted, find_weights
from testbed.published import FULL, shapes

_ROUNDS = 5


def main() -> None:
    """Prints the table."""
    print(f"{'model':12} {'stored':>7} {'weights':>8} {'ranges':>7} {'ms':>7}")
    for name, (make, publish) in FULL.items():
        with torch.device("meta"):
            module = make()
        file, wanted, seconds = shapes(publish(module.state_dict())), Wanted.of_module(module), []
        for _ in range(_ROUNDS):
            started = time.perf_counter()
            layout = find_weights(wanted, file, Path("model.safetensors")) or {}
            seconds.append(time.perf_counter() - started)
        ranges = sum(len(weight.pieces or ()) for weight in layout.values())
        print(f"{name:12} {len(file):7} {len(layout):8} {ranges:7} {statistics.median(seconds) * 1e3:7.0f}")


if __name__ == "__main__":
    main()
