"""What users change in a pipeline, compiled against eager: ``python -m benchmarks.changes [--draw N] [NAME …]``.

Each change (testbed/changes) is made to a pipeline of diffusers and to one that `dovetail.load_pipeline` opened: before
or after its first picture, with weights that rest on the devices, in host memory or on disk, split by layers or rows,
and once with all weights read back in between. The pictures are equal to the bit, or close where rows are split.
Prints the cells that are neither, then how many came out how, by kind of change and by setting. Each cell has a process
of its own; where that ends, it is counted so.
"""

from __future__ import annotations

import argparse
import itertools
import random
import tempfile
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from rich.console import Console
from rich.table import Table

from testbed.changes.cells import GOOD, GRID, Cell, Verdict, draw
from testbed.changes.change import CHANGES
from testbed.changes.processes import prepared, run

Outcome = tuple[Cell, Verdict]


def outcomes(cells: list[Cell], folder: Path, jobs: int) -> list[Outcome]:
    """Judges the cells, and prints those that are not as they should be as they come."""
    with ThreadPoolExecutor(jobs) as pool:
        return list(itertools.chain(*pool.map(lambda one: _some(cells[one::jobs], folder), range(jobs))))


def _some(cells: list[Cell], folder: Path) -> list[Outcome]:
    found = []
    for cell, verdict in run(cells, folder):
        found.append((cell, verdict))
        if verdict.kind not in GOOD:
            print(f"{cell}: {verdict.kind}: {' '.join(verdict.words.split())[:300]}", flush=True)
    return found


def table(title: str, rows: dict[str, Counter[str]]) -> Table:
    """Verdicts counted by row."""
    kinds = list(dict.fromkeys((*GOOD, *(kind for counted in rows.values() for kind in counted))))
    made = Table(title, *kinds)
    for name, counted in rows.items():
        made.add_row(name, *(str(counted[kind] or "") for kind in kinds))
    made.add_row("all", *(str(sum(counted[kind] for counted in rows.values())) for kind in kinds))
    return made


def counted(found: list[Outcome], by_kind: bool) -> dict[str, Counter[str]]:
    """How many cells came out how, by kind of change or by setting."""
    rows: dict[str, Counter[str]] = {}
    for cell, verdict in found:
        rows.setdefault(CHANGES[cell.change].kind if by_kind else str(cell.setting), Counter())[verdict.kind] += 1
    return rows


def main() -> None:
    """Prints what is not as eager is, and the tables."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("names", nargs="*", help="changes, or parts of settings such as `disk` or `row`; left out, all")
    parser.add_argument("--draw", type=int, help="so many cells, drawn at random")
    parser.add_argument("--seed", type=int, default=random.randrange(10**6))
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--folder", type=Path, help="where pipelines, traces and references are kept for the next run")
    given = parser.parse_args()
    cells = [cell for cell in GRID if _is_named(cell, given.names)]
    if given.draw:
        print(f"seed {given.seed}")
        cells = draw(cells, given.draw, given.seed)
    with tempfile.TemporaryDirectory() as made:
        folder = prepared(given.folder or Path(made))
        found = outcomes(cells, folder, given.jobs)
    console = Console()
    console.print(table("change", counted(found, by_kind=True)))
    console.print(table("setting", counted(found, by_kind=False)))


def _is_named(cell: Cell, names: list[str]) -> bool:
    changes = [name for name in names if name in CHANGES]
    settings = [name for name in names if name not in CHANGES]
    return (not changes or cell.change in changes) and all(name in str(cell.setting).split() for name in settings)


if __name__ == "__main__":
    main()
