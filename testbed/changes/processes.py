"""Judges each cell in a process of its own: one that ends says so of its cell, and the others go on.

    python -m testbed.changes.processes FOLDER CELLS.json

is a process that has imported all and computed nothing; it forks one for each cell, and prints a line for each.
"""

from __future__ import annotations

import dataclasses
import json
import logging
import os
import signal
import subprocess
import sys
import tempfile
import warnings
from collections.abc import Iterator, Sequence
from pathlib import Path

import diffusers

import dovetail
from dovetail.runtime import sim

from .cells import ENDED, Cell, Setting, Verdict, judge
from .files import save_all

LIMIT = 120
"""Seconds for one cell, after which its process ends."""
MARK = "verdict "


def prepared(folder: Path) -> Path:
    """The folder, with the pipelines and files that are changed in it; they are written once."""
    if not (folder / "ip" / "sdxl").exists():
        save_all(folder)
    return folder


def run(cells: Sequence[Cell], folder: Path) -> Iterator[tuple[Cell, Verdict]]:
    """Judges cells one after the other."""
    environment = {"DOVETAIL_CACHE_DIR": str(folder / "traces"), "OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1"}
    with tempfile.NamedTemporaryFile("w+", suffix=".json") as listed:
        json.dump([dataclasses.asdict(cell) for cell in cells], listed)
        listed.flush()
        command = [sys.executable, "-m", __name__, str(folder), listed.name]
        with subprocess.Popen(
            command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True, env={**os.environ, **environment}
        ) as process:
            assert process.stdout is not None
            lines = (line.removeprefix(MARK) for line in process.stdout if line.startswith(MARK))
            count = 0
            for cell, line in zip(cells, lines, strict=False):
                count += 1
                yield cell, Verdict(*json.loads(line))
    if count < len(cells):
        raise RuntimeError(f"only {count} of {len(cells)} cells were judged: run `{' '.join(command)}`")


def _serve(folder: Path, cells: Sequence[Cell]) -> None:
    _ = dovetail.load_pipeline, diffusers.FluxPipeline, diffusers.StableDiffusionPipeline  # imported once for all cells
    for cell in cells:
        with tempfile.NamedTemporaryFile("r") as answer:
            child = os.fork()
            if child == 0:
                _answer(cell, folder, Path(answer.name))
            _, status = os.waitpid(child, 0)
            code = os.waitstatus_to_exitcode(status)
            print(MARK + (answer.read() or json.dumps([ENDED, f"exit code {code}"])), flush=True)


def _answer(cell: Cell, folder: Path, file: Path) -> None:
    """Judges a cell and ends the process."""
    signal.alarm(LIMIT)
    sim.enable()
    file.write_text(json.dumps(dataclasses.astuple(judge(cell, folder))))
    os._exit(0)


if __name__ == "__main__":
    logging.disable(logging.ERROR)
    warnings.simplefilter("ignore")
    given = json.loads(Path(sys.argv[2]).read_text())
    _serve(Path(sys.argv[1]), [Cell(one["change"], Setting(**one["setting"])) for one in given])
