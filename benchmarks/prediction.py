"""Predicted seconds of several cards beside published measurements, as parts of those of one card.

    python -m benchmarks.prediction [--retrace [PART …]]

What cards do and send comes from traces of the models at full size, on meta, spread by the recipes that states are
compared with; it is kept in `testbed/seconds/together.json`, which `--retrace` writes again. One card takes what was
published of it. Links and latencies are those that a plan has of the names of cards; where a rig that says more of them
explains rows, what is predicted with it stands behind. Asked is 10 % on PCIe, and 20 % on NVLink.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Iterable

from testbed.seconds.together import WORK, off_by, predicted, read_together, retraced, summary
from testbed.seconds.together_rows import NVLINK, ROWS


def retrace(parts: Iterable[str]) -> None:
    """Traces parts anew, and writes the file with them."""
    data = json.loads(WORK.read_text()) if WORK.exists() else {}
    for part in parts or sorted({part for row in ROWS for part, _ in (*row.parts, *row.apart)}):
        start = time.process_time()
        data.update(retraced(part))
        print(f"{part}: {time.process_time() - start:.0f} s of the processor", flush=True)
    lines = (f"{json.dumps(key)}: {json.dumps(rows)}" for key, rows in sorted(data.items()))
    WORK.write_text("{\n" + ",\n".join(lines) + "\n}\n")


def main() -> None:
    """Prints the table, or traces again."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--retrace", nargs="*", metavar="PART")
    options = parser.parse_args()
    if options.retrace is not None:
        retrace(options.retrace)
        return
    work = read_together()
    print("| cards | what | how | published | predicted | off by | | source |\n|---|---|---|---|---|---|---|---|")
    for row in ROWS:
        off = off_by(row, work)
        link = "NVLink" if row.within == NVLINK else "PCIe"
        said = "fitted on" if row.fitted else "" if abs(off) <= row.within else f"missed: {row.cause}"
        other = f"{off_by(row, work, row.links):+.0%} with {row.links[1:]} " if row.links else ""
        print(
            f"| {row.count}× {row.card} {link} | {row.what} | {row.way} | {row.ratio:.3f} "
            f"| {predicted(row, work):.3f} | {off:+.0%} | {other}{said} | {row.source.title} |"
        )
    print(f"\n{summary(work)}\n")
    for source in dict.fromkeys(row.source for row in ROWS):
        print(f"{source.title}: {source.address}{f', {source.date}' if source.date else ''}")


if __name__ == "__main__":
    main()
