"""Predicted seconds beside published measurements: what the table of cards was fitted on, and how far all lie off.

    python -m benchmarks.published [--retrace [PART …]]

What is computed comes from traces of the models at full size, on meta (`testbed.zoo`). They take half a minute each, so
their costs are kept in `published_work.json`: `--retrace` writes it again. Published seconds are those of PyTorch as it
is, without `torch.compile`, caches or quantized arithmetic, on one card; those of a whole picture have the decoder of
pictures in them, and the denoiser alone where videos decode in tiles of a size that the source does not name.
"""

from __future__ import annotations

import argparse
import json
from collections import Counter
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path

from dovetail.compiler.ir.program import Program
from dovetail.compiler.spec.cards import card_of
from dovetail.compiler.spec.speeds import SPREAD, Speed, of_card
from dovetail.passes.simulate.cost import OpCost, cost_of

from .published_rows import ROWS, Row

WORK = Path(__file__).with_name("published_work.json")


def read_work() -> dict[str, Counter[OpCost]]:
    """The operations of each part by what they cost."""
    data = json.loads(WORK.read_text())
    return {
        part: Counter({OpCost(*cost, attention=attention): count for *cost, attention, count in rows})
        for part, rows in data.items()
    }


def seconds_of(work: Counter[OpCost], speed: Speed, dtype: str) -> float:
    """The seconds of a part on a card; what was traced in bfloat16 is computed in ``dtype``."""
    return sum(
        count * speed.seconds(cost.flops, cost.read + cost.written, _in(dtype, cost.dtype), cost.attention)
        for cost, count in work.items()
    )


def _in(dtype: str, traced: str) -> str:
    return dtype if traced == "bfloat16" else traced


def predicted(row: Row, work: dict[str, Counter[OpCost]]) -> float:
    """The seconds of a row by the table of cards."""
    card = card_of(row.card)
    assert card is not None, f"{row.card} is not in the table of cards"
    return sum(times * seconds_of(work[part], of_card(card), row.dtype) for part, times in row.parts)


def off_by(row: Row, work: dict[str, Counter[OpCost]]) -> float:
    """How far the prediction lies off, as a part of what was published."""
    return predicted(row, work) / row.seconds - 1


def retrace(parts: Iterable[str]) -> None:
    """Traces parts anew, and writes the file with them."""
    from dovetail.passes.rewrites.simplify import Simplify
    from testbed.zoo.full_size import trace_entry

    from .published_parts import PARTS

    data = json.loads(WORK.read_text()) if WORK.exists() else {}
    for part in parts or sorted({part for row in ROWS for part, _ in row.parts}):
        program, took = trace_entry(PARTS[part])
        Simplify().run(program)
        data[part] = costs_of(program)
        print(f"{part}: {len(data[part])} kinds of operations, traced in {took:.0f} s of the processor", flush=True)
    lines = (f"{json.dumps(part)}: {json.dumps(rows)}" for part, rows in sorted(data.items()))
    WORK.write_text("{\n" + ",\n".join(lines) + "\n}\n")


def costs_of(program: Program) -> list[list[object]]:
    """The costs of a program's operations, each with how often it occurs; nothing for those that are free."""
    found = Counter(replace(cost_of(node), whole=0) for node in program.ops())
    return [
        [one.flops, one.read, one.written, one.dtype, one.attention, count]
        for one, count in found.items()
        if one.flops or one.read or one.written
    ]


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


def summary(work: dict[str, Counter[OpCost]]) -> str:
    """How many of the rows that nothing was fitted on lie within the range that is printed."""
    others = [row for row in ROWS if not row.fitted]
    within = sum(abs(off_by(row, work)) <= SPREAD for row in others)
    cards = len({row.card for row in ROWS})
    return (
        f"{len(ROWS)} rows of {cards} cards; {len(ROWS) - len(others)} were fitted on; of the other {len(others)}, "
        f"{within} lie within {SPREAD:.0%} ({within / len(others):.0%})"
    )


if __name__ == "__main__":
    main()
