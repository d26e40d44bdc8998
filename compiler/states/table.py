"""The table of rules: of each kind of operation what it takes of split values, and what it yields then."""

from __future__ import annotations

import operator
from collections.abc import Iterable, Iterator, Mapping

import torch
from torch.fx import Node

from ..ir.pointwise import is_pointwise
from ..ir.program import state_of, states_of, tensors_of, value_of, weight_name
from ..ir.state import WHOLE, Parted, State
from ..ir.value import TensorType
from . import (
    attention,
    axes,
    convolutions,
    einsums,
    lookups,
    makers,
    matmuls,
    norms,
    pieces,
    pointwise,
    reductions,
    resampling,
    reshapes,
    statistics,
    sums,
)
from .strategy import Local, Offers, Rule, Strategy, argument, name_of, own_call, strategy, takes_part

_ATTENTION = "scaled_dot_product_attention"

_RULES: Mapping[str, Rule] = {
    **dict.fromkeys(axes.NAMES, axes.RULE),
    **dict.fromkeys(reshapes.NAMES, reshapes.RULE),
    **dict.fromkeys(pieces.CUTTING, pieces.CUT),
    **dict.fromkeys(pieces.JOINING, pieces.JOIN),
    "slice": pieces.SLICE,
    **dict.fromkeys(("linear", "quantized_linear"), matmuls.RULE_LINEAR),
    **dict.fromkeys(("matmul", "bmm"), matmuls.RULE_MATMUL),
    _ATTENTION: attention.RULE,
    **dict.fromkeys(("layer_norm", "rms_norm"), norms.LAYER),
    "group_norm": norms.GROUP,
    "row_statistics": statistics.ROWS,
    "group_statistics": statistics.GROUPS,
    "combined_statistics": statistics.COMBINED,
    "group_norm_by": norms.BY_STATISTICS,
    "batch_norm": norms.BATCH,
    **dict.fromkeys(convolutions.NAMES, convolutions.CONVOLUTION),
    **dict.fromkeys(resampling.PADDING, resampling.PAD),
    **dict.fromkeys(resampling.NEAREST, resampling.NEAR),
    **dict.fromkeys(resampling.POOLING, resampling.POOL),
    **dict.fromkeys(resampling.SHUFFLING, resampling.SHUFFLE),
    **dict.fromkeys((*resampling.SMOOTH, "adaptive_avg_pool2d"), resampling.APART),
    **dict.fromkeys(reductions.DIM, reductions.REDUCTION),
    **dict.fromkeys(reductions.ALONG, reductions.ALONGSIDE),
    **dict.fromkeys(("embedding", "quantized_embedding"), lookups.RULE),
    **dict.fromkeys(makers.LIKE, makers.LIKES),
    "repeat_interleave": makers.INTERLEAVED,
    "repeat": makers.REPEATED,
    "einsum": einsums.RULE,
    "terms": sums.TERMS,
    "sum_terms": sums.SUM,
}


def rule_of(node: Node) -> Rule | None:
    """The rule of an operation; None for one that takes its operands whole, and for what makes new tensors."""
    name = name_of(node)
    if not tensors_of(node) or not node.all_input_nodes or not isinstance(node.target, torch._ops.OpOverload):
        return None
    if (name == "dropout" and argument(node, 2, "train")) or (name == _ATTENTION and argument(node, 4, "dropout_p", 0)):
        return None  # what is drawn
    if name in _RULES:
        return _RULES[name] if isinstance(node.args[0], (Node, tuple, list)) or name == "einsum" else None
    is_same = name in pointwise.SAME and isinstance(node.args[0], Node)
    is_one = isinstance(value_of(node), TensorType)
    return pointwise.RULE if is_one and (is_same or is_pointwise(node.target, node.kwargs)) else None


def is_drawn(node: Node) -> bool:
    """Whether an operation draws numbers at random: each device that computed it would have others."""
    tags = node.target.tags if isinstance(node.target, torch._ops.OpOverload) else ()
    return torch.Tag.nondeterministic_seeded in tags and rule_of(node) is None


def strategies(node: Node, offers: Offers) -> Iterator[Strategy]:
    """The ways in which a group of devices computes an operation, given the states that its operands may have.

    The first is that of wholes, which every operation has: each device computes all of it.
    """
    yield strategy([WHOLE] * len(tensors_of(node)), {})
    rule = rule_of(node)
    if rule is not None:
        yield from filter(_is_had, rule.strategies(node, offers))


def _is_had(chosen: Strategy) -> bool:
    """Whether the devices that compute something are those that have something of each operand: nothing is nowhere."""
    splits = [state for state in (*chosen.results, *chosen.operands.values()) if isinstance(state, Parted)]
    members = range(len(splits[0].segments[0])) if splits else ()
    parts = [state for state in chosen.operands.values() if isinstance(state, Parted)]
    return all(bool(state.length(one)) == takes_part(chosen, one) for one in members for state in parts)


def strategy_of(node: Node) -> Strategy | None:
    """The way in which the group of a placed node computes it: what it yields says so, with what it is given.

    None where no rule has it so.
    """
    results = states_of(node)
    if node.target is operator.getitem:
        several, at = node.args
        assert isinstance(several, Node)
        assert isinstance(at, int)
        return Strategy(results, {}) if results == states_of(several)[at : at + 1] else None
    key: list[object] = [node.target, node.args, node.kwargs]
    for one in (node, *node.all_input_nodes):
        meta = one.meta
        key += meta.get("placement"), meta["value"]
    known = vars(node.graph).setdefault(_FOUND, {})  # which goes with the graph; passes ask again and again
    if node not in known or known[node][0] != key:
        given = {one: state_of(one) for one in node.all_input_nodes if tensors_of(one) and not weight_name(one)}
        known[node] = key, _found(node, results, given)
    found: Strategy | None = known[node][1]
    return found


def tells_all(node: Node, chosen: Strategy) -> bool:
    """Whether the states of the results of a node and of its operands that are no weights say how it is computed."""
    given = {one: chosen.takes(one) for one in node.all_input_nodes if tensors_of(one) and not weight_name(one)}
    return _found(node, chosen.results, given) == chosen


def _found(node: Node, results: tuple[State, ...], given: Mapping[Node, State]) -> Strategy | None:
    def offers(one: Node) -> Iterable[State]:
        return results if one is node else [given[one]] if one in given else []

    fitting = (one for one in strategies(node, offers) if one.results == results)
    return next((one for one in fitting if all(one.takes(operand) == state for operand, state in given.items())), None)


_FOUND = "_dovetail_strategies"
"""The attribute of a graph that has what was found of its nodes."""


def local_call(node: Node, chosen: Strategy, member: int) -> Local:
    """What one device of the group computes of an operation, by its number: this alone differs between devices."""
    rule = rule_of(node)
    if rule is None or rule.local is None or set(chosen.results) == {WHOLE}:
        return own_call(node)
    return rule.local(node, chosen, member)
