"""Reductions and softmax: by the axes that they leave; a sum over a split axis is a sum of terms."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from torch.fx import Node

from ..ir.program import tensors_of
from ..ir.state import PARTIAL, Split
from .strategy import Offers, Rule, Strategy, argument, name_of, shape_of, splits, strategy

DIM: Mapping[str, int] = {
    "mean": 1, "sum": 1, "amax": 1, "amin": 1, "any": 1, "all": 1, "linalg_vector_norm": 2, "argmax": 1, "argmin": 1,
    "prod": 1, "norm": 2, "logsumexp": 1,
}  # fmt: skip
"""Which argument of a reduction has its axes."""
ALONG = frozenset({"softmax", "_softmax", "log_softmax", "cumsum", "cumprod"})
"""Operations that read all of an axis, and leave the others apart."""


def reduced(node: Node, offers: Offers) -> Iterator[Strategy]:
    """By axes that stay; a sum by any of the others, too, or of terms of a sum."""
    x, name = node.args[0], name_of(node)
    assert isinstance(x, Node)
    rank, kept = len(shape_of(x)), len(shape_of(x)) == len(shape_of(node))
    given = argument(node, DIM[name], "dim")
    axes = range(rank) if given is None or given == [] else [given] if isinstance(given, int) else given
    gone = {axis % rank for axis in axes} if rank else set()
    goes = {axis: axis - (0 if kept else sum(one < axis for one in gone)) for axis in range(rank) if axis not in gone}
    back = {new: old for old, new in goes.items()}
    offered = [*splits(offers, x), *(Split(back[s.axis], s.segments) for s in splits(offers, node) if s.axis in back)]
    for state in dict.fromkeys(offered):
        if state.axis in goes:
            yield strategy(Split(goes[state.axis], state.segments), {x: state})
        elif name == "sum":
            yield strategy(PARTIAL, {x: state})
    is_exact = tensors_of(x)[0].dtype == tensors_of(node)[0].dtype  # terms that are rounded to integers are no terms
    if name in ("sum", "mean") and is_exact and PARTIAL in offers(x):
        yield strategy(PARTIAL, {x: PARTIAL})


def along(node: Node, offers: Offers) -> Iterator[Strategy]:
    """By the axes that are not read together."""
    x = node.args[0]
    assert isinstance(x, Node)
    read = argument(node, 1, "dim") % max(1, len(shape_of(x)))
    for state in splits(offers, x, node):
        if state.axis != read:
            yield strategy(state, {x: state})


REDUCTION, ALONGSIDE = Rule(reduced), Rule(along)
