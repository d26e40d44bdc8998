"""Runs the tests on other versions of the libraries, in an environment that is made for that and then removed.

    python scripts/try_version.py torch==2.11.0                # the smoke tests, with the newest of all other libraries
    python scripts/try_version.py torch==2.15.0 --fast         # the fast tests
    python scripts/try_version.py torch==2.12.1 --rest tested  # the others as in constraints.txt
    python scripts/try_version.py --rest lowest                # each as low as pyproject.toml allows, torch included
    python scripts/try_version.py --draw 7 --within 300        # what CI runs: the lowest or the newest, by a seed

Where the package index has no CPU build of a PyTorch, pip takes the one for CUDA, which runs on the CPU as well: 5 GB
in a temporary folder, and several minutes. The last line that is printed is a row of the table in docs/devices.md.
"""

import argparse
import os
import random
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

ROOT = Path(__file__).resolve().parent.parent
BOUND = re.compile(r"^([\w.-]+)>=([\w.]+)$")
RESTS = ("newest", "lowest", "tested")
OF_TORCH = re.compile(r"^(torch|triton|cuda-|nvidia-)")
"""What has another version with each PyTorch: itself, and what its builds bring along."""

SHOWN = ("torch", "diffusers", "transformers", "peft", "numpy")
"""The libraries whose versions stand in the table."""

PYTEST = ("-m", "pytest", "-n", "auto", "-q")
NEEDED_BYTES = 12 * 2**30


@dataclass(frozen=True)
class Tests:
    """Which tests run, the project's extras that they need, and what they need besides."""

    name: str
    extras: str
    needs: tuple[str, ...]
    options: tuple[str, ...]


SMOKE = Tests("smoke", "[diffusers]", ("pytest", "pytest-xdist", "hypothesis"), ("-m", "smoke"))
FAST = Tests("fast", "[diffusers,test]", (), ())


@dataclass(frozen=True)
class Tried:
    """What running the tests gave: pytest's exit status, its lines on what failed, and the row of the table."""

    status: int
    failed: tuple[str, ...]
    row: str


def lowest(project: dict) -> list[str]:
    """One ``name==version`` for each run-time dependency, those of the extra ``diffusers`` included."""
    declared = [*project["dependencies"], *project["optional-dependencies"]["diffusers"]]
    bounds = [BOUND.match(one) for one in declared]
    unbounded = [one for one, bound in zip(declared, bounds, strict=True) if bound is None]
    if unbounded:
        raise SystemExit(f"no lower bound in: {', '.join(unbounded)}")
    return [f"{bound[1]}=={bound[2]}" for bound in bounds if bound]


def pinned() -> list[str]:
    """The requirements in ``constraints.txt``."""
    lines = (line.strip() for line in (ROOT / "constraints.txt").read_text().splitlines())
    return [line for line in lines if line and not line.startswith("#")]


def torch_of(pins: list[str]) -> str:
    """The requirement of torch among others."""
    return next(one for one in pins if one.startswith("torch=="))


def constraints(asked: list[str], rest: str) -> list[str]:
    """What pip is told: what was asked for, and for every other library its version in ``rest``."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    pins = {"newest": [], "tested": pinned(), "lowest": lowest(project)}[rest]
    named = set(map(_name_in, asked))
    others = (one for one in pins if _name_in(one) not in named)
    return [*asked, *(one for one in others if "torch" not in named or not OF_TORCH.match(one))]


def _name_in(requirement: str) -> str:
    """The library of a requirement, spelled in the one way that all spellings stand for."""
    return re.sub(r"[-_.]+", "-", re.split(r"[=<>!~; ]", requirement)[0]).lower()


def drawn(seed: int) -> tuple[list[str], str]:
    """The lowest torch with the lowest versions of the other libraries, or the newest with the newest."""
    rest = random.Random(seed).choice(("lowest", "newest"))
    return [torch_of(constraints([], "lowest")) if rest == "lowest" else "torch"], rest


def install(environment: Path, tests: Tests, pins: list[str], python: str, within: float | None) -> bool:
    """Makes an environment with the project in it, editable; False where that takes longer than ``within`` seconds."""
    subprocess.run([python, "-m", "venv", environment], check=True)
    told = environment / "constraints.txt"
    told.write_text("".join(f"{pin}\n" for pin in pins))
    pip = [environment / "bin" / "pip", "install", "-q", "--no-cache-dir", "--no-compile", "-c", told]
    try:
        subprocess.run([*pip, *tests.needs, "-e", f"{ROOT}{tests.extras}"], check=True, timeout=within)
    except subprocess.TimeoutExpired:
        return False
    except subprocess.CalledProcessError:
        raise SystemExit(f"pip cannot install {' '.join(pins) or 'the newest libraries'}: why stands above") from None
    return True


def run_tests(environment: Path, tests: Tests) -> tuple[int, list[str]]:
    """Runs pytest and shows what it prints; its exit status and its lines."""
    command = [environment / "bin" / "python", *PYTEST, *tests.options]
    lines = []
    with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True) as running:
        try:
            for line in running.stdout or ():
                print(line, end="", flush=True)
                lines.append(line.rstrip())
        except BaseException:
            running.terminate()
            raise
    return running.returncode, lines


def versions(environment: Path) -> list[str]:
    """The installed versions of the libraries in ``SHOWN``, and before them that of Python."""
    asked = f"import platform, importlib.metadata as m; print(platform.python_version(), *map(m.version, {SHOWN}))"
    done = subprocess.run([environment / "bin" / "python", "-c", asked], capture_output=True, text=True, check=True)
    return done.stdout.split()


def try_versions(tests: Tests, pins: list[str], python: str, within: float | None = None) -> Tried | None:
    """Installs, runs the tests and removes the environment; None where installing takes longer than ``within``."""
    with tempfile.TemporaryDirectory(prefix="try_version_") as folder:
        environment, began = Path(folder) / "environment", time.monotonic()
        if not install(environment, tests, pins, python, within):
            return None
        seconds, found = time.monotonic() - began, versions(environment)
        shown = ", ".join(map(" ".join, zip(("Python", *SHOWN), found, strict=True)))
        print(f"installed in {seconds:.0f} s: {shown}", flush=True)
        status, lines = run_tests(environment, tests)
    failed = tuple(line for line in lines if line.startswith(("FAILED", "ERROR")))
    outcome = lines[-1].strip("= ") if lines else "pytest printed nothing"
    return Tried(status, failed, f"| {' | '.join(found)} | {tests.name}: {outcome} |")


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("asked", nargs="*", metavar="torch==X", help="requirements, as pip takes them")
    parser.add_argument("--fast", action="store_true", help="run the fast tests; without it, the smoke tests")
    parser.add_argument("--rest", choices=RESTS, default="newest", help="the versions of all other libraries")
    parser.add_argument("--draw", type=int, metavar="SEED", help="draw the lowest or the newest libraries by a seed")
    parser.add_argument("--within", type=float, metavar="S", help="take the tested torch where installing takes longer")
    parser.add_argument("--python", default=sys.executable, help="the Python of the environment")
    given = parser.parse_args()
    if given.draw is not None and given.asked:
        parser.error("--draw draws the versions: name none beside it")
    if shutil.which(given.python) is None:
        parser.error(f"there is no Python called {given.python}")
    return given


def main() -> int:
    """Tries what the command line asks for; pytest's exit status."""
    given = _arguments()
    if shutil.disk_usage(tempfile.gettempdir()).free < NEEDED_BYTES:
        raise SystemExit(f"{tempfile.gettempdir()} has less than {NEEDED_BYTES >> 30} GiB free: set TMPDIR")
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # so that the temporary folder is removed
    tests = FAST if given.fast else SMOKE
    asked, rest = (given.asked, given.rest) if given.draw is None else drawn(given.draw)
    print(f"{', '.join(asked) or 'all libraries'}, the rest: {rest}", flush=True)
    tried = try_versions(tests, constraints(asked, rest), given.python, given.within)
    if tried is None:
        asked = [torch_of(pinned()), *(one for one in asked if _name_in(one) != "torch")]
        print(f"installing took more than {given.within:g} s: the tested {asked[0]} is taken in its place", flush=True)
        tried = try_versions(tests, constraints(asked, rest), given.python)
    assert tried is not None, "without a limit there is none to pass"
    print("\n".join((*tried.failed, tried.row)))
    return tried.status


if __name__ == "__main__":
    raise SystemExit(main())
