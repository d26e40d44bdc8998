"""Modes of devices that compute together, on the whole zoo: ``python -m benchmarks.modes [--seed N] [NAME …]``.

A cell is a tiny entry at 256 tokens or more (or the most that its class takes) under a mode; devices (2, 3, 4), their
shares, sizes that divide by nothing and the dtype are drawn by the seed, which is printed. Each cell is solved, run on
simulated devices and judged: results are at most 1.5 times as far from float64 as eager's, or one ulp, over five
calls; bytes and peaks are those planned. Printed are the cells that are not so, with their reasons, the operations of
blocks that are not split though an axis has two units, and a summary by mode. With --folder cells that are there from
an earlier run are not judged again. With --where it is said which operations of a cell have other bits in parts than
whole, under the modes that keep bits where they can.
"""

from __future__ import annotations

import argparse
import json
import random
import statistics
import tempfile
import traceback
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch

from dovetail.passes.states.exactness import KEEPING
from testbed.differences import differences
from testbed.mode_cells import Cell, cells, judge
from testbed.zoo.everything import NAMES

Outcome = tuple[Cell, dict[str, Any]]
ROW = "{:14} {:>6} {:>6} {:>9} {:>6} {:>11} {:>10} {:>9} {:>9}"
HEAD = ("mode", "cells", "wrong", "no states", "solved", "equal bits", "ratio most", "s median", "s most")


def main() -> None:
    """Judges the cells that are asked for, and prints what was found."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", help="of entries; all if left out")
    parser.add_argument("--seed", type=int, default=random.randrange(10**6))
    parser.add_argument("--folder", type=Path, help="where results are kept for the next run")
    parser.add_argument(
        "--where", action="store_true", help="say where cells lose bits whose modes keep them if they can"
    )
    given = parser.parse_args()
    print(f"seed {given.seed}", flush=True)
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as made:
        folder = given.folder or Path(made)
        folder.mkdir(parents=True, exist_ok=True)
        found = list(outcomes(given.names or list(NAMES), given.seed, folder / "modes.jsonl"))
    print_whole(found)
    if given.where:
        print_differences(found)
    print_summary(found)


def outcomes(names: list[str], seed: int, path: Path) -> Iterator[Outcome]:
    """What was found of each cell, before or now; those that are wrong are printed."""
    lines = path.read_text().splitlines() if path.exists() else []
    known = {one["cell"]: one["verdict"] for one in map(json.loads, lines)}
    for cell in cells(names, seed):
        verdict = known.get(str(cell))
        if verdict is None:
            verdict = _judged(cell)
            with path.open("a") as file:
                file.write(json.dumps({"cell": str(cell), "verdict": verdict}) + "\n")
        for reason in verdict["wrong"]:
            print(f"{cell}: {reason}", flush=True)
        yield cell, verdict


def _judged(cell: Cell) -> dict[str, Any]:
    """What was found of a cell; whatever is raised is found of it too."""
    try:
        return judge(cell).as_dict()
    except Exception as error:  # a cell that fails is a result
        where = traceback.extract_tb(error.__traceback__)[-1]
        words = f"{type(error).__name__} in {where.name}: {' '.join(str(error).split())[:300]}"
        return {"how": "failed", "seconds": 0.0, "wrong": [words], "whole": [], "ratio": 0.0, "is_equal": False}


def print_whole(found: list[Outcome]) -> None:
    """The operations that are not split, by mode and reason, with an entry each."""
    counted: Counter[tuple[str, str]] = Counter()
    seen: dict[tuple[str, str], Cell] = {}
    for cell, verdict in found:
        for one in verdict["whole"]:
            kind, _, reason = one.partition(": ")
            key = cell.mode, f"{kind.split(' ')[0]}, {reason}"
            counted[key] += 1
            seen.setdefault(key, cell)
    for (mode, what), number in sorted(counted.items()):
        print(f"not split under {mode}: {number} × {what}, as in {seen[mode, what]}")


def print_differences(found: list[Outcome]) -> None:
    """The kinds of operations whose parts differ from the whole in cells that are to keep bits, with one of each."""
    for cell, verdict in found:
        if (
            verdict["is_equal"]
            or cell.mode not in KEEPING
            or verdict["how"] == "failed"
            or "not possible" in verdict["how"]
        ):
            continue
        seen: dict[str, list[str]] = {}
        for one in differences(cell):
            seen.setdefault(one.name, []).append(str(one))
        for some in seen.values():
            print(f"{cell}: {len(some)} × {some[0]}", flush=True)
        if not seen:
            print(f"{cell}: no operation differs from what it yields on the same numbers laid out alike")


def print_summary(found: list[Outcome]) -> None:
    """How cells came out, by mode."""
    print(ROW.format(*HEAD))
    for mode in dict.fromkeys(cell.mode for cell, _ in found):
        mine = [verdict for cell, verdict in found if cell.mode == mode]
        ran = [one for one in mine if one["how"] != "failed" and "not possible" not in one["how"]]
        if not ran:
            continue
        seconds, ratios = [one["seconds"] for one in ran], [one["ratio"] for one in ran]
        counts = sum(bool(one["wrong"]) for one in mine), sum("not possible" in one["how"] for one in mine)
        solved, equal = sum(one["how"] == "solved" for one in ran), sum(one["is_equal"] for one in ran)
        middle, most = statistics.median(seconds), max(seconds)
        equals = f"{equal} of {len(ran)}"
        print(
            ROW.format(mode, len(mine), *counts, solved, equals, f"{max(ratios):.2f}", f"{middle:.2f}", f"{most:.1f}")
        )


if __name__ == "__main__":
    main()
