"""Where the time goes from a command to the first step, cold and at a second start: ``python -m benchmarks.start``.

    python -m benchmarks.start [demo] [sd15] [flux] [planned] [explained] [shown] [refused] [--folder DIR]

*demo* paints with the model that comes with the package; *sd15* with Stable Diffusion 1.5's sizes and random weights in
bfloat16, 256x256; *flux* plans full-size FLUX.1-dev at 1024x1024 over sparse files for a card of 24 GiB and one of 16
(``dovetail compile``), for which nothing is read; *planned*, *explained* and *shown* are what `dovetail plan`,
`explain` and `show` say of it on cards of 16 and 10 GiB; *refused* asks for all its weights there, three quarters on
the first. Each is started twice in processes of its own over a new folder of the cache: *cold*, and *second*.
Seconds by part; a part does not count what another part does within it:

- *imports*: executing modules, of Python and of libraries;
- *building*: making the modules on meta, and the pipeline of them;
- *tracing*; *key*: describing what a trace depends on; *reading the cache*: parsing the kept programs;
- *passes*, without *verify*; *executor*: the code of segments; *weights*: reading them; *steps*: running programs;
- *rest*: everything else: the pipeline's own code, and the end of the process.

Beside them seconds of the CPU, of all threads: on a machine that does other things meanwhile they are what counts.
"""

from __future__ import annotations

import argparse
import contextlib
import functools
import gc
import importlib
import importlib.machinery
import json
import os
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

PARTS = (
    "imports", "building", "tracing", "key", "reading the cache", "passes", "verify", "executor", "weights", "steps",
)  # fmt: skip
_TIMED = {
    "dovetail.pipelines.loading.saved": {"_build_all": "building", "_assemble": "building"},
    "dovetail.compiler.frontend.trace": {"trace": "tracing"},
    "dovetail.cache.traces": {"key_of": "key", "read": "reading the cache", "keep": "tracing"},
    "dovetail.cache.programs": {"key_of": "key", "read": "reading the cache"},
    "dovetail.passes.infra.manager": {"PassManager.run": "passes"},
    "dovetail.passes.lowering.verification": {"verify": "verify"},
    "dovetail.components.compiled": {
        "Executor.__init__": "executor",
        "CompiledModule.load": "weights",
        "CompiledModule.__call__": "steps",
    },
}
_FLUX = ("--rig", "cuda0=16GiB@RTX 4080,cuda1=10GiB@RTX 3080,cpu=64GiB", "--size", "1024", "--steps", "28")
_REFUSED = ("--backend", "cuda0+cuda1", "--tensor-split", "3,1", "--params-backend", "device")
_OF_FLUX = ("planned", "explained", "shown", "refused")
COMMANDS: dict[str, Callable[[Path], list[str]]] = {
    "demo": lambda folder: ["generate", "a red circle", "--steps", "2", "-o", str(folder / "out.png")],
    "sd15": lambda folder: [
        "generate", "a red circle", "--model", str(folder / "sd15"), "--size", "256", "--steps", "1",
        "-o", str(folder / "out.png"),
    ],
    "flux": lambda folder: [
        "compile", str(folder / "flux"), "--rig", "cuda0=24GiB,cuda1=16GiB", "--backend", "cuda0&cuda1",
        "--size", "1024",
    ],
    "planned": lambda folder: ["plan", str(folder / "flux"), *_FLUX],
    "explained": lambda folder: ["explain", str(folder / "flux"), *_FLUX],
    "shown": lambda folder: ["show", str(folder / "flux"), *_FLUX],
    "refused": lambda folder: ["plan", str(folder / "flux"), *_FLUX, *_REFUSED],
}  # fmt: skip


Pair = tuple[float, float]


def _now() -> Pair:
    """Seconds of the wall clock, and of the CPU."""
    return time.time(), time.process_time()


class Clock:
    """Sums the seconds of parts; while one runs within another, the outer one's time stands still."""

    def __init__(self) -> None:
        self.seconds: dict[str, list[float]] = {name: [0.0, 0.0] for name in PARTS}
        self._running: list[str] = []
        self._since = _now()

    @contextlib.contextmanager
    def part(self, name: str) -> Iterator[None]:
        """Counts what runs meanwhile as this part."""
        self._turn()
        self._running.append(name)
        try:
            yield
        finally:
            self._turn()
            self._running.pop()

    def around(self, function: Callable[..., Any], name: str) -> Callable[..., Any]:
        """A function whose calls count as a part."""

        @functools.wraps(function)
        def timed(*args: Any, **kwargs: Any) -> Any:
            if threading.current_thread() is not threading.main_thread():
                return function(*args, **kwargs)
            with self.part(name):
                return function(*args, **kwargs)

        return timed

    def _turn(self) -> None:
        now = _now()
        if self._running:
            part = self.seconds[self._running[-1]]
            part[:] = [sum_ + after - before for sum_, after, before in zip(part, now, self._since, strict=True)]
        self._since = now


def inside(command: list[str], report: Path) -> None:
    """Runs a command of dovetail in this process as its script does, and writes the seconds of its parts.

    Parts are named within `main`: the script ends the process at once where nothing was registered for its end before.
    """
    clock = Clock()
    for loader in (importlib.machinery.SourceFileLoader, importlib.machinery.ExtensionFileLoader):
        for method in ("exec_module", "create_module"):
            setattr(loader, method, clock.around(getattr(loader, method), "imports"))
    from dovetail import cli

    def main(own: Callable[[], None] = cli.main) -> None:
        _name_parts(clock)
        own()

    cli.main = main
    sys.argv = ["dovetail", *command]
    with contextlib.suppress(SystemExit):
        cli.run()
    report.write_text(json.dumps(clock.seconds))


def _name_parts(clock: Clock) -> None:
    """Has the functions that are timed count as their parts."""
    gc.disable()
    with clock.part("imports"):
        for module, names in _TIMED.items():
            home = importlib.import_module(module)
            for name, part in names.items():
                *path, last = name.split(".")
                owner = functools.reduce(getattr, path, home)
                setattr(owner, last, clock.around(getattr(owner, last), part))


def started(name: str, folder: Path, cache: Path) -> dict[str, Pair]:
    """The seconds by part of one start in a process of its own: of the wall clock and of the CPU."""
    report = folder / "report.json"
    words = ["--inside", json.dumps(COMMANDS[name](folder)), "--report", str(report)]
    environment = {**os.environ, "DOVETAIL_CACHE_DIR": str(cache), "DOVETAIL_CACHE": "1"}
    environment.pop("PYTHONDONTWRITEBYTECODE", None)  # the second start would compile every module once more
    begun, before = time.time(), os.times()
    done = subprocess.run(
        [sys.executable, "-m", "benchmarks.start", *words], env=environment, capture_output=True, text=True
    )
    after = os.times()
    if not report.exists():
        raise SystemExit(done.stderr[-2000:])
    found: dict[str, Pair] = {part: (wall, cpu) for part, (wall, cpu) in json.loads(report.read_text()).items()}
    report.unlink()
    cpu = after.children_user + after.children_system - before.children_user - before.children_system
    total = (time.time() - begun, cpu)
    rest = tuple(whole - sum(pair[i] for pair in found.values()) for i, whole in enumerate(total))
    return {**found, "rest": (rest[0], rest[1]), "total": total}


def _made(name: str, folder: Path) -> None:
    """Writes the folder of a pipeline, in a process of its own, unless it is there."""
    name = "flux" if name in _OF_FLUX else name
    if name == "demo" or (folder / name).is_dir():
        return
    code = f"from pathlib import Path; from testbed import folders; folders.{name}_folder(Path({str(folder / name)!r}))"
    subprocess.run([sys.executable, "-c", code], check=True, capture_output=True)


def main(names: list[str], folder: Path) -> None:
    """Prints a table a pipeline."""
    for name in names:
        _made(name, folder)
        with tempfile.TemporaryDirectory() as cache:
            rows = [started(name, folder, Path(cache)) for _ in ("cold", "second")]
        print(f"\n{name:20} {'cold':>8} {'cpu':>8}   {'second':>8} {'cpu':>8}")
        for part in (*PARTS, "rest", "total"):
            shown = "   ".join(f"{wall:8.2f} {cpu:8.2f}" for wall, cpu in (row[part] for row in rows))
            print(f"{part:20} {shown}", flush=True)


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("names", nargs="*", metavar="NAME")
    parser.add_argument("--folder", type=Path)
    parser.add_argument("--inside")
    parser.add_argument("--report", type=Path)
    given = parser.parse_args()
    if given.inside:
        inside(json.loads(given.inside), given.report)
    else:
        with tempfile.TemporaryDirectory() as scratch:
            main(given.names or list(COMMANDS), given.folder or Path(scratch))
