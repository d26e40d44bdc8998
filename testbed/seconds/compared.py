"""Predicted seconds of what others measured: from the costs of traces, which are kept in `work.json`."""

from __future__ import annotations

import json
from collections import Counter
from dataclasses import replace
from pathlib import Path

from dovetail.compiler.devices.cards import card_of
from dovetail.compiler.devices.speeds import SPREAD, Speed, of_card
from dovetail.compiler.ir.program import Program
from dovetail.passes.simulate.cost import OpCost, cost_of

from .rows import ROWS, Row

WORK = Path(__file__).with_name("work.json")


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


def costs_of(program: Program) -> list[list[object]]:
    """The costs of a program's operations, each with how often it occurs; nothing for those that are free."""
    found = Counter(replace(cost_of(node), whole=0, convolution=False) for node in program.ops())
    return [
        [one.flops, one.read, one.written, one.dtype, one.attention, count]
        for one, count in found.items()
        if one.flops or one.read or one.written
    ]


def summary(work: dict[str, Counter[OpCost]]) -> str:
    """How many of the rows that nothing was fitted on lie within the range that is printed."""
    others = [row for row in ROWS if not row.fitted]
    within = sum(abs(off_by(row, work)) <= SPREAD for row in others)
    cards = len({row.card for row in ROWS})
    return (
        f"{len(ROWS)} rows of {cards} cards; {len(ROWS) - len(others)} were fitted on; of the other {len(others)}, "
        f"{within} lie within {SPREAD:.0%} ({within / len(others):.0%})"
    )
