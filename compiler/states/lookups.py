"""Lookups: by what is looked up, each with the whole table."""

from __future__ import annotations

from collections.abc import Iterator

from torch.fx import Node

from ..ir.state import Split
from .strategy import Offers, Rule, Strategy, shape_of, splits, strategy


def embedding(node: Node, offers: Offers) -> Iterator[Strategy]:
    """By indices; or by columns of a table that is not packed."""
    table, indices = node.args[:2]
    assert isinstance(indices, Node)
    last = len(shape_of(node)) - 1
    for state in splits(offers, indices, node):
        if state.axis != last:
            yield strategy(state, {indices: state})
        elif "quantized" not in str(node.target) and state in set(splits(offers, node)):
            yield strategy(state, {table: Split(1, state.segments)})


RULE = Rule(embedding)
