"""Attention: by pictures of a batch, by heads, and by queries, each of which needs all keys and values."""

from __future__ import annotations

from collections.abc import Iterator

from torch.fx import Node

from ..ir.ops import CAUSAL_ATTENTION_OF_ROWS
from ..ir.state import Split, State
from .strategy import Local, Offers, Rule, Strategy, argument, divided, own_call, shape_of, splits, strategy


def strategies(node: Node, offers: Offers) -> Iterator[Strategy]:
    """Heads of queries go with the heads of keys and values that they read; queries with all keys and values.

    Where each query reads the keys before it, a device has the queries of one stretch.
    """
    q, k, v = node.args[:3]
    assert isinstance(q, Node)
    assert isinstance(k, Node)
    assert isinstance(v, Node)
    rank = len(shape_of(q))
    offered = splits(offers, q, node)
    offered += [_of_queries(state, q, k) for state in splits(offers, k) if state.axis < rank - 2]
    for state in dict.fromkeys(offered):
        if state.axis == rank - 2 and q not in (k, v) and (not _is_causal(node) or _are_stretches(state)):
            yield strategy(state, {q: state, **_mask(node, state)})
        elif state.axis < rank - 2 and (keys := _of_keys(state, q, k)) and _of_keys(state, q, v) == keys:
            taken = {q: state, k: keys, v: keys, **_mask(node, state)}
            if taken[q] == state:
                yield strategy(state, taken)


def _ratio(state: Split, q: Node, k: Node) -> int:
    """How many heads of queries, or pictures, read one of keys."""
    return shape_of(q)[state.axis] // max(1, shape_of(k)[state.axis])


def _of_keys(state: Split, q: Node, k: Node) -> Split | None:
    """What keys are split by where queries are; None where heads that read the same ones are torn apart."""
    segments = divided(state.segments, _ratio(state, q, k)) if shape_of(k)[state.axis] else None
    return Split(state.axis, segments) if segments else None


def _of_queries(state: Split, q: Node, k: Node) -> Split:
    by = _ratio(state, q, k)
    return Split(state.axis, tuple(tuple((a * by, b * by) for a, b in one) for one in state.segments))


def _mask(node: Node, state: Split) -> dict[Node, State]:
    """What of the mask goes with queries, where it has an axis of its own for them."""
    mask = argument(node, 3, "attn_mask")
    if not isinstance(mask, Node):
        return {}
    axis = state.axis - (len(shape_of(node)) - len(shape_of(mask)))
    has = axis >= 0 and shape_of(mask)[axis] == shape_of(node)[state.axis] > 1
    return {mask: Split(axis, state.segments)} if has else {}


def _is_causal(node: Node) -> bool:
    return bool(argument(node, 5, "is_causal", False))


def _are_stretches(state: Split) -> bool:
    return all(len(state.ranges(member)) < 2 for member in range(len(state.segments[0])))


def local(node: Node, chosen: Strategy, member: int) -> Local:
    """Where queries read the keys before them, a device says which its first one is."""
    (state,), call = chosen.results, own_call(node)
    if not (_is_causal(node) and isinstance(state, Split) and state.axis == len(shape_of(node)) - 2):
        return call
    ((first, _),) = state.ranges(member)
    return CAUSAL_ATTENTION_OF_ROWS, (*call[1][:3], first), call[2]


RULE = Rule(strategies, local)
