"""What must hold on this machine's accelerators, looked at once, with a line for each: for a report of a device.

    python -m testbed.gpu [NAME …] [--calls 200]

NAME is a device (`cuda0`), all accelerators that there are if left out; simulated ones (`sim0`) may be named to see
what is asked. Everything is asked of the first device, and of all together where there are several. Exit code 1 if
something does not hold, 2 if there is no accelerator; what takes two devices is skipped where there is one. The checks
are in testbed/gpu_checks.py, gpu_mode_checks.py and gpu_thread_checks.py; `pytest tests/gpu -m gpu` runs them as tests.
"""

from __future__ import annotations

import argparse
import functools
import platform
import sys
import traceback
from collections.abc import Sequence

import diffusers
import torch

from dovetail.compiler.devices.rig import Rig
from testbed.gpu_checks import CHECKS, delays, torch_device
from testbed.gpu_mode_checks import DELAYED, MODE_CHECKS, NotAsked
from testbed.gpu_thread_checks import THREAD_CHECKS


def accelerators() -> list[str]:
    """The names of the accelerators of this machine."""
    return [device.name for device in Rig.detect(()) if not device.is_host and not device.is_simulated]


def groups(names: Sequence[str]) -> list[Sequence[str]]:
    """The sets of devices that are asked: the first, and all."""
    return [names[:1], names] if len(names) > 1 else [names]


def describe(names: Sequence[str]) -> str:
    """What a report must say of the machine."""
    labels = {device.name: memory.label for device, memory in Rig.detect(()).memory.items()}
    there = ", ".join(f"{name} {labels.get(name, '')}".strip() for name in names)
    return f"{there}; torch {torch.__version__}, diffusers {diffusers.__version__}, {platform.platform()}"


def ask(names: Sequence[str], calls: int) -> int:
    """Runs the checks on a set of devices and prints a line for each; returns how many do not hold."""
    failed = 0
    for check in (*CHECKS, *MODE_CHECKS, *THREAD_CHECKS):
        asked = functools.partial(check, calls=calls) if check in (delays, DELAYED) else check
        try:
            print(f"holds  {check.__name__:22} {asked(names)}", flush=True)
        except NotAsked as reason:
            print(f"skips  {check.__name__:22} {reason}", flush=True)
        except Exception as error:
            failed += 1
            print(f"FAILS  {check.__name__:22} {type(error).__name__}: {error}", flush=True)
            traceback.print_exc()
    return failed


def main(arguments: Sequence[str] | None = None) -> int:
    """Prints the lines."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", metavar="NAME")
    parser.add_argument("--calls", type=int, default=200, help="of the check with delays")
    options = parser.parse_args(arguments)
    names = options.names or accelerators()
    if not names:
        print("this machine has no accelerator that PyTorch sees: nothing was checked", file=sys.stderr)
        return 2
    for name in names:
        torch_device(name)
    print(describe(names))
    return 1 if sum(ask(group, options.calls) for group in groups(names)) else 0


if __name__ == "__main__":
    sys.exit(main())
