"""Says which operations are elementwise: on parts of a value each yields a part of its result."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch.fx import Node

from .aliasing import in_place
from .program import tensors_of, value_of, weight_name
from .value import TensorType

_CASTS = frozenset({"to.dtype", "_to_copy.default"})
"""Elementwise operations that torch does not tag as such."""


def is_elementwise(node: Node) -> bool:
    """Whether a node computes each number of its result, in memory of its own, from the numbers at the same place."""
    if node.op != "call_function" or not isinstance(value_of(node), TensorType):
        return False
    mine = {tensor.storage for tensor in tensors_of(node)}
    if any(mine.intersection(tensor.storage for tensor in tensors_of(one)) for one in node.all_input_nodes):
        return False
    return is_pointwise(node.target, node.kwargs)


def is_pointwise(target: Any, kwargs: Mapping[str, Any]) -> bool:
    """Whether an operation computes each number of its result from the numbers at the same place, and always alike."""
    if not isinstance(target, torch._ops.OpOverload) or torch.Tag.nondeterministic_seeded in target.tags:
        return False
    name = target.overloadpacket.__name__
    if f"{name}.{target._overloadname}" in _CASTS:
        return kwargs.keys() <= {"dtype"}
    elsewhere = getattr(torch.ops.aten, name.removesuffix("_"), None)  # not every in-place form is tagged
    twin = getattr(elsewhere, target._overloadname, target)
    return torch.Tag.pointwise in target.tags or (in_place(twin) is target and torch.Tag.pointwise in twin.tags)


def is_number(node: Node) -> bool:
    """Whether a node yields a Python number, or is no weight and has no dimensions: it is the same for all parts."""
    return not tensors_of(node) or (not weight_name(node) and not any(one.shape for one in tensors_of(node)))
