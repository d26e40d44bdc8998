"""Whole pipelines of which a component is split: ``python -m benchmarks.mode_pipelines [--only NAME,…] [--seed N]``.

Of each tiny pipeline two modes of its components are drawn by the seed, which is printed, with 2 to 4 simulated
devices, their shares (equal, uneven, one with nothing) and a dtype. The pipeline paints a picture of 256 tokens or as
many as it takes, one of another size, and several at once. A row says how far the split component is from float64,
as a part of how far eager is; wrong is more than 1.5 of that and of one ulp, over five seeds, or bytes and peaks other
than planned. With --folder cells that are there from an earlier run are not judged again.
"""

from __future__ import annotations

import argparse
import json
import logging
import random
import signal
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NoReturn

import torch

from dovetail.runtime import sim
from testbed.mode_pipelines import Cell, cells, judge
from testbed.pipelines.every_pipeline import EVERY_PIPELINE

LIMIT = 600  # seconds a cell
ROW = "| {:62} | {:>5} | {:>6} | {:>8} | {}"


def main() -> None:
    """Judges the cells that are asked for, and prints what was found."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", help="pipelines, by the names of testbed/pipelines; all if left out")
    parser.add_argument("--seed", type=int, default=random.randrange(10**6))
    parser.add_argument("--folder", type=Path, help="where results are kept for the next run")
    given = parser.parse_args()
    print(f"seed {given.seed}", flush=True)
    logging.getLogger("diffusers").setLevel(logging.ERROR)
    logging.getLogger("dovetail").propagate = False
    signal.signal(signal.SIGALRM, _late)
    torch.set_num_threads(1)
    sim.enable()
    names = given.only.split(",") if given.only else list(EVERY_PIPELINE)
    with tempfile.TemporaryDirectory() as made:
        folder = given.folder or Path(made)
        folder.mkdir(parents=True, exist_ok=True)
        print(ROW.format("pipeline, component=mode, shares, dtype", "split", "ratio", "calls", "wrong"), flush=True)
        found = list(_outcomes(names, given.seed, folder / "mode_pipelines.jsonl"))
    _print_summary(found)


def _late(*_: Any) -> NoReturn:
    raise TimeoutError(f"not done after {LIMIT} s")


def _outcomes(names: list[str], seed: int, path: Path) -> Iterator[tuple[Cell, dict[str, Any]]]:
    """What was found of each cell, before or now; a row of it is printed."""
    lines = path.read_text().splitlines() if path.exists() else []
    known = {one["cell"]: one["verdict"] for one in map(json.loads, lines)}
    for cell in (cell for name in names for cell in cells(name, seed)):
        verdict = known.get(str(cell))
        if verdict is None:
            verdict = _judged(cell)
            with path.open("a") as file:
                file.write(json.dumps({"cell": str(cell), "verdict": verdict}) + "\n")
        is_split, ratio = "yes" if verdict["is_split"] else "no", f"{verdict['ratio']:.2f}"
        why = "; ".join(verdict["wrong"]) or "; ".join(verdict["told"])[:160]
        print(ROW.format(str(cell), is_split, ratio, len(verdict["judged"]), why), flush=True)
        yield cell, verdict


def _judged(cell: Cell) -> dict[str, Any]:
    """What was found of a cell; whatever is raised is found of it too."""
    signal.alarm(LIMIT)
    try:
        return judge(cell).as_dict()
    except Exception as error:  # a cell that fails is a result
        words = f"{type(error).__name__}: {' '.join(str(error).split())[:300]}"
        return {"judged": [], "ratio": 0.0, "is_split": False, "told": [], "wrong": [words]}
    finally:
        signal.alarm(0)


def _print_summary(found: list[tuple[Cell, dict[str, Any]]]) -> None:
    """How cells came out, by mode."""
    for mode in dict.fromkeys(cell.mode for cell, _ in found):
        mine = [verdict for cell, verdict in found if cell.mode == mode]
        wrong, split = sum(bool(one["wrong"]) for one in mine), sum(one["is_split"] for one in mine)
        ratio = max(one["ratio"] for one in mine)
        print(f"{mode}: {len(mine)} cells, {split} split, {wrong} wrong, ratio at most {ratio:.2f}")


if __name__ == "__main__":
    main()
