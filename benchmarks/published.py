"""Predicted seconds beside published measurements: what the table of cards was fitted on, and how far all lie off.

    python -m benchmarks.published [--retrace [PART …]]

What is computed comes from traces of the models at full size, on meta (`testbed.zoo`). They take half a minute
each, so their costs are kept in `testbed/seconds/work.json`: `--retrace` writes it again. Published seconds are
those of PyTorch as it is, without `torch.compile`, caches or quantized arithmetic, on one card; those of a whole
picture have the decoder of pictures in them, and the denoiser alone where videos decode in tiles of a size that the
source does not name.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterable

from dovetail.compiler.devices.speeds import SPREAD
from dovetail.passes.rewrites.simplify import Simplify
from testbed.seconds.compared import WORK, costs_of, off_by, predicted, read_work, summary
from testbed.seconds.rows import ROWS


def retrace(parts: Iterable[str]) -> None:
    """Traces parts anew, and writes the file with them."""
    from testbed.seconds.parts import PARTS  # which import diffusers
    from testbed.zoo.full_size import trace_entry

    data = json.loads(WORK.read_text()) if WORK.exists() else {}
    for part in parts or sorted({part for row in ROWS for part, _ in row.parts}):
        program, took = trace_entry(PARTS[part])
        Simplify().run(program)
        data[part] = costs_of(program)
        print(f"{part}: {len(data[part])} kinds of operations, traced in {took:.0f} s of the processor", flush=True)
    lines = (f"{json.dumps(part)}: {json.dumps(rows)}" for part, rows in sorted(data.items()))
    WORK.write_text("{\n" + ",\n".join(lines) + "\n}\n")


def main() -> None:
    """Prints the table, or traces again."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--retrace", nargs="*", metavar="PART")
    options = parser.parse_args()
    if options.retrace is not None:
        retrace(options.retrace)
        return
    work = read_work()
    print("| card | what | published | predicted | off by | | source |\n|---|---|---|---|---|---|---|")
    for row in ROWS:
        off = off_by(row, work)
        said = "fitted on" if row.fitted else "" if abs(off) <= SPREAD else f"missed: {row.cause}"
        print(
            f"| {row.card} | {row.what} | {row.seconds:.4g} s | {predicted(row, work):.4g} s | {off:+.0%} | {said} "
            f"| {row.source} |"
        )
    print(f"\n{summary(work)}")


if __name__ == "__main__":
    main()
