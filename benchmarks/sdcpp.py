"""A picture on the CPU beside stable-diffusion.cpp: ``python -m benchmarks.sdcpp --sd-cli PATH``.

    python -m benchmarks.sdcpp [--sd-cli PATH] [--folder DIR] [--threads 2] [--rounds 1]

Both paint one picture of 256x256 in 10 steps with guidance, from the same folder: Stable Diffusion 1.5's sizes, with
random weights in bfloat16 (``testbed/folders.py``). *first* is a first start, with an empty cache; *second* one after
it; files are in the page cache for both. *seconds* are of the wall clock from the command to the end of the process,
*cpu* those of all its threads, *peak* the most resident memory (mapped files count). *step* is the difference between a
picture of ten steps and one of two, by eight. *from disk* is a second start with ``--params-backend disk``: the weights
of a phase leave memory at its end. Rounds alternate; the medians are printed.

Without ``--sd-cli`` dovetail is measured alone. To build it (minutes of CPU), outside of the repository:

    pip download --no-binary :all: --no-deps stable-diffusion-cpp-python && tar xf stable_diffusion_cpp_python-*.tar.gz
    cmake -S stable_diffusion_cpp_python-*/vendor/stable-diffusion.cpp -B build -G Ninja -DCMAKE_BUILD_TYPE=Release
    ninja -C build sd-cli
"""

from __future__ import annotations

import argparse
import os
import statistics
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

STEPS, FEW = 10, 2
PROMPT = "a red circle"


@dataclass(frozen=True)
class Ran:
    """What one process took: seconds of the wall clock and of the CPU, and bytes of memory at its peak."""

    seconds: float
    cpu: float
    peak: int


def ran(command: list[str], environment: dict[str, str]) -> Ran:
    """Runs a command in a process of its own."""
    begun = time.perf_counter()
    process = subprocess.Popen(command, env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)
    assert process.stderr is not None
    told = process.stderr.read()
    _, status, used = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode:
        raise SystemExit(told.decode(errors="replace")[-2000:])
    return Ran(time.perf_counter() - begun, used.ru_utime + used.ru_stime, used.ru_maxrss * 1024)


def ours(folder: Path, steps: int, *others: str) -> list[str]:
    """The command line of dovetail."""
    words = ["generate", PROMPT, "--model", str(folder / "sd15"), "--size", "256", "--steps", str(steps)]
    more = ["--guidance", "7.5", "--backend", "cpu", "-o", str(folder / "ours.png")]
    return [sys.executable, "-m", "dovetail", *words, *more, *others]


def theirs(tool: Path, folder: Path, steps: int, threads: int) -> list[str]:
    """The command line of stable-diffusion.cpp."""
    words = ["-m", str(folder / "sd15"), "-p", PROMPT, "-W", "256", "-H", "256", "--steps", str(steps)]
    return [str(tool), *words, "--cfg-scale", "7.5", "-t", str(threads), "-o", str(folder / "theirs.png")]


def measured(folder: Path, tool: Path | None, threads: int) -> dict[str, Ran]:
    """One round: what each start took, by name."""
    own = {**os.environ, "OMP_NUM_THREADS": str(threads), "DOVETAIL_CACHE": "1"}
    with tempfile.TemporaryDirectory() as cache:
        own["DOVETAIL_CACHE_DIR"] = cache
        found = {
            "dovetail first": ran(ours(folder, STEPS), own),
            "dovetail second": ran(ours(folder, STEPS), own),
            "dovetail few": ran(ours(folder, FEW), own),
            "dovetail from disk": ran(ours(folder, STEPS, "--params-backend", "disk"), own),
        }
    if tool is None:
        return found
    return found | {
        "sd-cli first": ran(theirs(tool, folder, STEPS, threads), own),
        "sd-cli second": ran(theirs(tool, folder, STEPS, threads), own),
        "sd-cli few": ran(theirs(tool, folder, FEW, threads), own),
    }


def main(folder: Path, tool: Path | None, threads: int, rounds: int) -> None:
    """Prints a table, and the ratios of dovetail's figures to the other's."""
    if not (folder / "sd15").is_dir():
        place = str(folder / "sd15")
        code = f"from pathlib import Path; from testbed import folders; folders.sd15_folder(Path({place!r}))"
        subprocess.run([sys.executable, "-c", code], check=True, capture_output=True)
    several = [measured(folder, tool, threads) for _ in range(rounds)]
    middle = {name: _median([one[name] for one in several]) for name in several[0]}
    print(f"{'':20} {'seconds':>8} {'cpu':>8} {'peak GB':>8} {'step s':>8} {'step cpu':>8}")
    for name, one in middle.items():
        if name.endswith("few"):
            continue
        few = middle[f"{name.partition(' ')[0]} few"]
        step = ((one.seconds - few.seconds) / (STEPS - FEW), (one.cpu - few.cpu) / (STEPS - FEW))
        shown = f"{step[0]:8.2f} {step[1]:8.2f}" if name.endswith("second") else ""
        print(f"{name:20} {one.seconds:8.1f} {one.cpu:8.1f} {one.peak / 1e9:8.2f} {shown}")
    if tool is not None:
        for which, beside in (("first", "first"), ("second", "second"), ("from disk", "second")):
            mine, other = middle[f"dovetail {which}"], middle[f"sd-cli {beside}"]
            ratios = (mine.seconds / other.seconds, mine.cpu / other.cpu, mine.peak / other.peak)
            print(f"{which + ', ratio':20} " + " ".join(f"{ratio:8.2f}" for ratio in ratios))


def _median(several: list[Ran]) -> Ran:
    return Ran(
        statistics.median(one.seconds for one in several),
        statistics.median(one.cpu for one in several),
        max(one.peak for one in several),
    )


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--sd-cli", type=Path)
    parser.add_argument("--folder", type=Path)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=1)
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as scratch:
        main(given.folder or Path(scratch), given.sd_cli, given.threads, given.rounds)
