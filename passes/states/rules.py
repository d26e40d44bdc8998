"""The table of rules: of each kind of operation what it takes of split values, and what it yields then."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import torch
from torch.fx import Node

from ...compiler.ir.program import tensors_of, value_of
from ...compiler.ir.state import WHOLE
from ...compiler.ir.value import TensorType
from ..analysis.pointwise import is_pointwise
from . import attention, axes, convolutions, lookups, makers, matmuls, norms, pieces, pointwise, reductions, reshapes
from .strategy import Local, Offers, Rule, Strategy, argument, name_of, own_call, strategy

_RULES: Mapping[str, Rule] = {
    **dict.fromkeys(axes.NAMES, axes.RULE),
    **dict.fromkeys(reshapes.NAMES, reshapes.RULE),
    **dict.fromkeys(pieces.CUTTING, pieces.CUT),
    **dict.fromkeys(pieces.JOINING, pieces.JOIN),
    "slice": pieces.SLICE,
    **dict.fromkeys(("linear", "quantized_linear"), matmuls.RULE_LINEAR),
    **dict.fromkeys(("matmul", "bmm"), matmuls.RULE_MATMUL),
    "scaled_dot_product_attention": attention.RULE,
    **dict.fromkeys(("layer_norm", "rms_norm"), norms.LAYER),
    "group_norm": norms.GROUP,
    "batch_norm": norms.BATCH,
    **dict.fromkeys(convolutions.NAMES, convolutions.CONVOLUTION),
    **dict.fromkeys((*convolutions.RESAMPLING, "pad", "constant_pad_nd"), convolutions.APART),
    **dict.fromkeys(reductions.DIM, reductions.REDUCTION),
    **dict.fromkeys(reductions.ALONG, reductions.ALONGSIDE),
    **dict.fromkeys(("embedding", "quantized_embedding"), lookups.RULE),
    **dict.fromkeys(makers.LIKE, makers.LIKES),
    "repeat_interleave": makers.INTERLEAVED,
    "repeat": makers.REPEATED,
}


def rule_of(node: Node) -> Rule | None:
    """The rule of an operation; None for one that takes its operands whole, and for what makes new tensors."""
    name = name_of(node)
    if not tensors_of(node) or not node.all_input_nodes or not isinstance(node.target, torch._ops.OpOverload):
        return None
    if name in _RULES:
        return _RULES[name] if isinstance(node.args[0], (Node, tuple, list)) else None
    if name == "dropout" and argument(node, 2, "train"):
        return None
    is_same = name in pointwise.SAME and isinstance(node.args[0], Node)
    is_one = isinstance(value_of(node), TensorType)
    return pointwise.RULE if is_one and (is_same or is_pointwise(node.target, node.kwargs)) else None


def strategies(node: Node, offers: Offers) -> Iterator[Strategy]:
    """The ways in which a group of devices computes an operation, given the states that its operands may have.

    The first is that of wholes, which every operation has: each device computes all of it.
    """
    yield strategy([WHOLE] * len(tensors_of(node)), {})
    rule = rule_of(node)
    if rule is not None:
        yield from rule.strategies(node, offers)


def local_call(node: Node, chosen: Strategy, member: int) -> Local:
    """What one device of the group computes of an operation, by its number: this alone differs between devices."""
    rule = rule_of(node)
    if rule is None or rule.local is None or set(chosen.results) == {WHOLE}:
        return own_call(node)
    return rule.local(node, chosen, member)
