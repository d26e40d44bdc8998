"""Compiles every full-size entry of tests/zoo on meta and prints a table: ``python -m benchmarks.zoo [NAME …]``.

Nothing runs and no weight has data. Seconds are CPU seconds of this process. The second table doubles the layers of
some models: time that more than doubles (by a tenth and more) would show a pass that is not linear.
"""

from __future__ import annotations

import sys

from dovetail.compiler.states.parts import crossing_bytes
from testbed.zoo.full_size import FULL_SIZE, compile_entry, deepened, trace_entry

DOUBLED = {"flux-dev": (30, 60), "sd3.5-large": (19, 38), "wan2.1-14b": (20, 40)}
HEAD = ("entry", "nodes", "kept", "blocks", "devices", "segments", "cuts", "crossing", "trace s", "passes s", "share")
ROW = "{:24} {:>6} {:>6} {:>6} {:>7} {:>8} {:>4} {:>12} {:>8} {:>8} {:>6}"


def main(names: list[str]) -> None:
    """Prints both tables; with names only those rows of the first."""
    print(ROW.format(*HEAD))
    for name in names or FULL_SIZE:
        program, tracing = trace_entry(FULL_SIZE[name])
        for count in (2, 4):
            print(_row(name, program, tracing, count), flush=True)
    if not names:
        _print_doubling()


def _row(name: str, program: object, tracing: float, count: int) -> str:
    compiled, clock = compile_entry(program, count)  # type: ignore[arg-type]
    segments = len(compiled.segments)
    return ROW.format(
        name,
        len(program.graph.nodes),  # type: ignore[attr-defined]
        len(compiled.graph.nodes),
        len(compiled.blocks),
        count,
        segments,
        segments - 1,
        f"{crossing_bytes(compiled) / 2**20:.1f} MiB",
        f"{tracing:.2f}",
        f"{clock.seconds:.2f}",
        f"{100 * clock.seconds / tracing:.1f} %",
    )


def _print_doubling() -> None:
    print(f"\n{'entry':16} {'layers':>9} {'passes s':>16} {'ratio':>6}")
    for name, depths in DOUBLED.items():
        programs = [trace_entry(deepened(name, depth))[0] for depth in depths]
        few, many = (min(compile_entry(program, 2)[1].seconds for _ in range(5)) for program in programs)
        print(f"{name:16} {depths[0]:>3} → {depths[1]:<3} {few:>7.3f} → {many:.3f} {many / few:>6.2f}", flush=True)


if __name__ == "__main__":
    main(sys.argv[1:])
