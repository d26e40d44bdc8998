"""A list of prompts over replicas, one of which is killed, stopped and gone on with: ``python -m benchmarks.bulk``.

    python -m benchmarks.bulk [--prompts 200] [--replicas 3] [--steps 1] [--size 32]

The demo paints a list over replicas, each on a simulated device of its own. After a quarter of the pictures one replica
is killed (SIGKILL); after half of them the command is interrupted (Ctrl-C) and given once more. Then one process paints
the same list. Printed are how many pictures there are, how many were written more than once, how many differ from those
of one process in any byte, what was left running, and pictures an hour of each run.

Last, one process paints it with text encoders on the host and all else on a simulated device, without and with the next
prompt encoded while the last one is sampled: pictures an hour of both, and how many differ in any number. All that
paint compute on one thread: with another number of threads a processor rounds otherwise.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from itertools import zip_longest
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from dovetail.cli.options.shared import Where
from dovetail.jobs.job import Job
from dovetail.jobs.runner import Opening, Runner
from testbed.processes import children_of, is_alive

_COLOURS = ("red", "green", "blue", "yellow")
_SHAPES = ("circle", "square", "triangle")


@dataclass
class Run:
    """A command that painted a list, or a part of it: its exit code, the files of each line, and how many an hour."""

    code: int = 0
    written: Counter[str] = field(default_factory=Counter)
    rate: float = 0.0
    replaced: int = 0
    left: list[int] = field(default_factory=list)


def main() -> None:
    """Prints the table."""
    parser = argparse.ArgumentParser()
    for name, default in (("prompts", 200), ("replicas", 3), ("steps", 1), ("size", 32)):
        parser.add_argument(f"--{name}", type=int, default=default)
    args = parser.parse_args()
    signal.signal(signal.SIGINT, signal.default_int_handler)  # who is started in the background ignores it otherwise
    with tempfile.TemporaryDirectory() as name:
        measure(Path(name), args.prompts, args.replicas, args.steps, args.size)


def measure(folder: Path, count: int, replicas: int, steps: int, size: int) -> None:
    """Paints the list in all ways, and prints what came of it."""
    options = ["--steps", str(steps), "--size", str(size), "--threads", "1"]
    prompts = folder / "prompts.txt"
    prompts.write_text("".join(f"a {_COLOURS[n % 4]} {_SHAPES[n % 3]}\n" for n in range(count)))
    names = "+".join(f"sim{index}" for index in range(replicas))
    many = ["--replicas", str(replicas), "--backend", names, *options]
    (folder / "many").mkdir()
    (folder / "one").mkdir()
    first = paint(prompts, folder / "many", many, _disturbing(count))
    second = paint(prompts, folder / "many", many)
    alone = paint(prompts, folder / "one", ["--backend", "sim0", *options])
    pictures = {path.name: path.read_bytes() for path in sorted((folder / "many").glob("*.png"))}
    written = first.written + second.written
    others = [name for name, data in pictures.items() if (folder / "one" / name).read_bytes() != data]
    rows = [
        ("prompts", str(count)),
        ("pictures", str(len(pictures))),
        ("painted more than once", str(sum(times > 1 for times in written.values()))),
        ("other than those of one process", str(len(others))),
        ("replicas that ended and were replaced", str(first.replaced + second.replaced)),
        ("exit codes: interrupted, gone on with, one process", f"{first.code}, {second.code}, {alone.code}"),
        ("pictures until it was interrupted, and after", f"{len(first.written)}, {len(second.written)}"),
        ("processes left behind", str(len(first.left + second.left + alone.left))),
        ("pictures an hour over replicas, once they are ready", f"{second.rate:.0f}"),
        ("pictures an hour in one process", f"{alone.rate:.0f}"),
        *encoding_ahead(prompts.read_text().splitlines(), steps, size),
    ]
    table = Table("", "", show_header=False)
    for row in rows:
        table.add_row(*row)
    Console().print(table)


def encoding_ahead(prompts: list[str], steps: int, size: int) -> list[tuple[str, str]]:
    """Pictures an hour without and with the next prompt encoded meanwhile, and how many of them differ."""
    runner = Runner(Opening(where=Where(backend="te=cpu,diffusion=sim0,vae=sim0"), threads=1))
    jobs = [Job(one, width=size, height=size, steps=steps, seed=number) for number, one in enumerate(prompts)]
    for job in {len(one.prompt.split()): one for one in jobs}.values():
        runner.run(job)  # which compiles
    pictures, rates = [], []
    for knows in (False, True):
        began, made = time.perf_counter(), []
        for job, following in zip_longest(jobs, jobs[1:]):
            runner.expect(following if knows else None)
            made.append(runner.run(job)[0].tobytes())
        pictures.append(made)
        rates.append(3600 * len(jobs) / (time.perf_counter() - began))
    runner.close()
    others = sum(one != other for one, other in zip(*pictures, strict=True))
    return [
        ("pictures an hour with encoders on the host", f"{rates[0]:.0f}"),
        ("the same with the next prompt encoded meanwhile", f"{rates[1]:.0f}, {rates[1] / rates[0]:.2f} times as many"),
        ("pictures that differ by that", str(others)),
    ]


Disturb = Callable[[int, int], None]
"""Is told the number of a process, and how many pictures it has painted."""


def paint(prompts: Path, folder: Path, options: list[str], disturb: Disturb = lambda pid, done: None) -> Run:
    """Runs the command in a process of its own, and disturbs it on the way."""
    words = ["generate", "--prompts-file", str(prompts), "-o", str(folder / "out.png"), "--json", *options]
    summary = folder / "summary.json"
    with summary.open("w") as out:
        command = subprocess.Popen(
            [sys.executable, "-m", "dovetail", *words], stderr=subprocess.PIPE, stdout=out, text=True
        )
    run = Run()
    known: set[int] = set()
    for event in _events(command):
        known.update(children_of(command.pid))
        if event["event"] == "line":
            run.written.update(event.get("files", []))
            disturb(command.pid, len(run.written))
        run.replaced += event["event"] == "replica" and "another one takes its place" in event["told"]
    run.code = command.wait()
    told = summary.read_text()
    run.rate = json.loads(told)["pictures_an_hour"] if told else 0.0
    run.left = [pid for pid in known if is_alive(pid)]
    return run


def _events(command: subprocess.Popen[str]) -> Iterator[dict[str, Any]]:
    assert command.stderr is not None
    for line in command.stderr:
        if line.startswith('{"event"'):
            yield json.loads(line)
        else:
            print(line, end="", file=sys.stderr)


def _disturbing(count: int) -> Disturb:
    """Kills a replica after a quarter of the pictures, and interrupts the command after half of them."""
    marks = [count // 4, count // 2]

    def disturb(pid: int, done: int) -> None:
        if not marks or done < marks[0]:
            return
        marks.pop(0)
        if marks:
            os.kill(children_of(pid)[0], signal.SIGKILL)
        else:
            os.kill(pid, signal.SIGINT)

    return disturb


if __name__ == "__main__":
    main()
