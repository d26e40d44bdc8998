"""Sums of products by letters, as far as they only put the axes of one tensor in another order: each stays split."""

from __future__ import annotations

from collections.abc import Iterator

from torch.fx import Node

from ..ir.state import Split
from .strategy import Offers, Rule, Strategy, splits, strategy


def strategies(node: Node, offers: Offers) -> Iterator[Strategy]:
    """An axis of the operand is split where the axis of its letter is in the result."""
    operand, count = node.all_input_nodes[0], len(node.all_input_nodes)
    given, arrow, made = str(node.args[0]).replace(" ", "").partition("->")
    if count > 1 or not arrow or not given.isalpha() or len(set(given)) < len(given) or sorted(given) != sorted(made):
        return
    found = {Split(made.index(given[one.axis]), one.segments): one for one in splits(offers, operand)}
    found |= {one: Split(given.index(made[one.axis]), one.segments) for one in splits(offers, node)}
    for result, taken in found.items():
        yield strategy(result, {operand: taken})


RULE = Rule(strategies)
