"""Terms of a sum as a value of their own: one behind another, each on its device, and what they add up to."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch.fx import Node

from ..ir.state import PARTIAL, Split
from .strategy import Local, Offers, Rule, Strategy, splits, strategy


def terms(node: Node, offers: Offers) -> Iterator[Strategy]:
    """Each device has the term that it has of the operand."""
    x = node.args[0]
    assert isinstance(x, Node)
    for state in splits(offers, node) if PARTIAL in offers(x) else ():
        if state.axis == 0:
            yield strategy(state, {x: PARTIAL})


def own_term(node: Node, chosen: Strategy, member: int) -> Local:
    """The term of a device, which is one of them."""
    return torch.ops.aten.unsqueeze.default, (node.args[0], 0), {}


def sums(node: Node, offers: Offers) -> Iterator[Strategy]:
    """By every axis of the result, of which a device then has all terms."""
    x = node.args[0]
    assert isinstance(x, Node)
    offered = [state for state in splits(offers, x) if state.axis > 0]
    offered += [Split(state.axis + 1, state.segments) for state in splits(offers, node)]
    for state in dict.fromkeys(offered):
        yield strategy(Split(state.axis - 1, state.segments), {x: state})


TERMS, SUM = Rule(terms, own_term), Rule(sums)
