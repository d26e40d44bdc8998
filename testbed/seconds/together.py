"""Predicted seconds of several cards that compute together, from what each does and sends, kept in `together.json`.

A card's seconds are those of the table of cards, all in the proportion that has one card take what was published of
it: the program, its kernels and its compiler are others. What crosses is predicted as it is for a user who names the
cards and says nothing of their links; none of these is fitted.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from dovetail.compiler.devices.cards import card_of
from dovetail.compiler.devices.rig import Rig
from dovetail.compiler.devices.speeds import Speed, of_card, speeds_of
from dovetail.compiler.ir.program import Program, tensors_of
from dovetail.passes.simulate.cost import OpCost
from dovetail.passes.states.exchanges import Flow, Group, exchanges_of
from dovetail.passes.states.modes import posed
from dovetail.passes.states.problem import Choice, Problem
from dovetail.passes.states.recipes import recipes

from ..published_states import card_group, traced
from .compared import costs_of
from .together_rows import BATCH, ROWS, TENSOR, Row

WORK = Path(__file__).with_name("together.json")

Key = tuple[str, str, int]
"""A part, the way in which cards compute it, and how many they are."""


@dataclass(frozen=True)
class Shared:
    """What equal cards do and send in a call: costs of each operation, and the bytes of each exchange, with counts.

    An operation has the costs of those of its parts that differ; the longest counts.
    """

    costs: Mapping[tuple[OpCost, ...], int]
    exchanges: tuple[tuple[Flow, int, int], ...]

    def computing(self, speed: Speed) -> float:
        """The seconds of a card's operations."""
        return sum(count * max(one.seconds(speed) for one in costs) for costs, count in self.costs.items())

    def crossing(self, group: Group) -> float:
        """The seconds of exchanges."""
        return sum(count * group.seconds(flow, times) for flow, times, count in self.exchanges)


def shared_of(problem: Problem, choice: Choice) -> list[list[Any]]:
    """What is done and sent in a choice, as data."""
    costs: Counter[tuple[OpCost, ...]] = Counter()
    for each, count in problem.work(choice):
        known = tuple(dict.fromkeys(replace(one, whole=0) for one in each if one.flops or one.read or one.written))
        if known:
            costs[known] += count
    sent: Counter[tuple[Flow, int]] = Counter()
    for change in problem.account(choice).changes:
        node, at = change.tensor
        flow, _ = problem.change(change.tensor, change.source, change.target)
        kind = tensors_of(node)[at]
        times = exchanges_of(problem.group, change.source, change.target, kind.sizes, kind.dtype.itemsize)
        if any(map(any, flow)):
            sent[flow, times] += change.count
    rows = [[[[c.flops, c.read, c.written, c.dtype, c.attention] for c in key], n] for key, n in costs.items()]
    return [rows, [[flow, times, count] for (flow, times), count in sent.items()]]


def alone_of(program: Program) -> list[list[Any]]:
    """What one card does in a call of a program, as data."""
    return [[[[one[:5]], one[5]] for one in costs_of(program)], []]


def retraced(part: str) -> dict[str, list[list[Any]]]:
    """What is done and sent of a part in each way in which a row has it, traced anew, as data by key."""
    from .parts_together import PARTS  # which imports diffusers

    program = traced(PARTS[part])
    found = {f"{part}|alone|1": alone_of(program)}
    for way, count, card in sorted({(row.way, row.count, row.card) for row in ROWS if part in dict(row.parts)}):
        mode = {TENSOR: "tensor", BATCH: "batch"}.get(way, "sequence")
        question = posed(program, card_group(card, (1,) * count), mode)
        (recipe,) = (one for one in recipes(question) if one.name.startswith(way))
        found[f"{part}|{way}|{count}"] = shared_of(question.problem, recipe.choice)
    return found


def read_together() -> dict[Key, Shared]:
    """What is kept, by part, way and number of cards."""
    found: dict[Key, Shared] = {}
    for name, (rows, sent) in json.loads(WORK.read_text()).items():
        part, way, count = name.split("|")
        costs = {tuple(OpCost(*one[:4], attention=one[4]) for one in key): times for key, times in rows}
        exchanges = tuple((tuple(map(tuple, flow)), times, many) for flow, times, many in sent)
        found[part, way, int(count)] = Shared(costs, exchanges)
    return found


def predicted(row: Row, work: Mapping[Key, Shared], links: str = "") -> float:
    """The seconds of some cards as a part of those of one card; ``links`` is what a rig says behind its cards."""
    card = card_of(row.card)
    assert card is not None, f"{row.card} is not in the table of cards"
    speed = of_card(card) if row.launch is None else replace(of_card(card), launch=row.launch)
    rest = sum(times * work[part, "alone", 1].computing(speed) for part, times in row.apart)
    shares = [(times, work[part, "alone", 1], work[part, row.way, row.count]) for part, times in row.parts]
    whole = sum(times * one.computing(speed) for times, one, _ in shares)
    scale = row.alone / (whole + rest)
    group = group_of(row, links)
    computing = sum(times * scale * many.computing(speed) for times, _, many in shares)
    crossing = sum(times * many.crossing(group) for times, _, many in shares)
    return (computing + crossing + scale * rest) / row.alone


def group_of(row: Row, links: str = "") -> Group:
    """The cards of a row, with what is said of their links."""
    rig = Rig.parse(f"{row.count}x {row.card},64GiB{links}")
    cards = tuple(one for one in rig.devices if not one.is_host)
    return Group(cards, (1,) * row.count, speeds_of(rig))


def off_by(row: Row, work: Mapping[Key, Shared], links: str = "") -> float:
    """How far predicted seconds lie off, as a part of those that were published."""
    return predicted(row, work, links) / row.ratio - 1


def summary(work: Mapping[Key, Shared]) -> str:
    """How many of the rows that nothing was fitted on lie within what is asked of their links."""
    others = [row for row in ROWS if not row.fitted]
    within = sum(abs(off_by(row, work)) <= row.within for row in others)
    fitted = len(ROWS) - len(others)
    return (
        f"{len(ROWS)} rows, of which {fitted} was fitted on; of the other {len(others)}, {within} lie within what is "
        "asked of them"
    )
