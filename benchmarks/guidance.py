"""Guidance on two simulated devices: how much they work at the same time, and what picture comes of it.

    python -m benchmarks.guidance [NAME …]

A line for each tiny pipeline: how its parts of guidance are on two devices (calls that take turns, or the halves of one
call), how many times as much is done in the same time as on one device, by the clocks of their streams, and whether the
picture is eager's to the bit or how far it is off. See `testbed.overlap`.
"""

from __future__ import annotations

import argparse

from testbed.guidance import GUIDED, painted


def main() -> None:
    """Prints a line for each pipeline."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", metavar="NAME")
    for name in parser.parse_args().names or GUIDED:
        print(painted(name), flush=True)


if __name__ == "__main__":
    main()
