"""How long the page of a large program takes to make and to open in headless Chromium: `python -m benchmarks.page`.

    python -m benchmarks.page [--operations 30000] [--times 5] [PAGE.html …]

The time to open is that from asking for the file until its script has put the page together, in a browser that runs.
Pages that are named are opened too. The median of several openings is printed.
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
import time
from pathlib import Path

import torch
from torch import nn

import dovetail
from dovetail.compiler.ir.program import Program
from dovetail.draw import page
from testbed.browser import launched, opened, why_not

OF_BLOCK = 100


class Block(nn.Module):
    """Many small operations and a few weights."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(8, 8)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Computes with what it is given."""
        x = self.linear(x)
        for _ in range(OF_BLOCK - 1):
            x = torch.sin(x)
        return x


def program_of(operations: int) -> Program:
    """A program of so many operations, over two simulated devices."""
    blocks = nn.ModuleList(Block() for _ in range(operations // OF_BLOCK))
    return dovetail.compile(
        nn.Sequential(*blocks).eval(), (torch.ones(1, 8),), backend="sim0&sim1", rig="sim0=1GiB,sim1=1GiB"
    ).program


def seconds_to_open(file: Path, times: int) -> list[float]:
    """The seconds of several openings of a page in one browser."""
    found = []
    with launched() as browser:
        for _ in range(times):
            start = time.perf_counter()
            opened(browser, file).page.close()
            found.append(time.perf_counter() - start)
    return found


def main() -> None:
    """Prints a line for each page."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("pages", nargs="*", type=Path)
    parser.add_argument("--operations", type=int, default=30_000)
    parser.add_argument("--times", type=int, default=5)
    asked = parser.parse_args()
    if why_not():
        raise SystemExit(f"no page can be opened here: {why_not()}")
    with tempfile.TemporaryDirectory() as folder:
        pages = [path.resolve() for path in asked.pages]
        if asked.operations:
            program = program_of(asked.operations)
            start = time.perf_counter()
            text = page({"model": program})
            print(f"made in {time.perf_counter() - start:.2f} s: {len(program.graph.nodes)} nodes")
            pages.append(Path(folder, f"{asked.operations} operations.html"))
            pages[-1].write_text(text, encoding="utf-8")
        for path in pages:
            took = seconds_to_open(path, asked.times)
            size, middle = path.stat().st_size / 2**20, statistics.median(took)
            print(f"{path.name}: {size:.1f} MiB, opened in {middle:.2f} s ({min(took):.2f} to {max(took):.2f})")


if __name__ == "__main__":
    main()
