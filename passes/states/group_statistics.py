"""Takes group norms apart into their statistics and the rest, so that pictures can be split in space.

Of the mean and the variance of a group each device has a term, a number a group and picture; everything else is
elementwise. Squares are taken about the mean, which comes first, so that two small sums are exchanged. The numbers
differ from those of the one operation by rounding.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import torch
from torch.fx import Node

from ...compiler.ir.ops import GROUP_MEANS, GROUP_NORM_BY, GROUP_VARIANCES, statistics_dtype
from ...compiler.ir.program import Program, origin_of, tensors_of
from ...compiler.ir.value import TensorType, dense_stride
from ...compiler.states.strategy import argument, name_of

_EPS = 1e-5


def take_group_norms_apart(program: Program) -> int:
    """Takes group norms of a program over axes in space apart; returns how many.

    Equal programs are so changed alike: nodes of one and of its copy have the same names before and after.
    """
    found, fresh = list(filter(_is_in_space, program.ops())), program.fresh_storages()
    for node in found:
        _take_apart(program, node, fresh)
    return len(found)


def _is_in_space(node: Node) -> bool:
    return (
        name_of(node) == "group_norm"
        and len(sizes := tensors_of(node)[0].shape) > 2
        and all(isinstance(size, int) for size in sizes)
    )


def _take_apart(program: Program, node: Node, fresh: Iterator[int]) -> None:
    """Puts two statistics and a norm by these in the place of a group norm."""
    x, groups = node.args[0], argument(node, 1, "num_groups")
    assert isinstance(x, Node)
    (made,) = tensors_of(node)
    count = math.prod(made.sizes[1:]) // groups
    of_groups = (made.sizes[0], groups)

    def add(target: Any, shape: tuple[int, ...], dtype: torch.dtype, *args: Any) -> Node:
        with program.graph.inserting_before(node):
            found = program.graph.call_function(target, args)
        found.meta = {
            "value": TensorType(shape, dtype, dense_stride(shape), next(fresh)),
            "origin": origin_of(node),
        }
        return found

    exact = statistics_dtype(made.dtype)
    means = add(GROUP_MEANS, of_groups, exact, x, groups, count)
    variances = add(GROUP_VARIANCES, of_groups, exact, x, means, groups, count)
    weight, bias = argument(node, 2, "weight"), argument(node, 3, "bias")
    eps = float(argument(node, 4, "eps", _EPS))
    result = add(GROUP_NORM_BY, made.sizes, made.dtype, x, means, variances, weight, bias, groups, eps)
    result.meta["value"] = replace(
        result.meta["value"], stride=made.stride, storage=made.storage
    )  # views of it say that they lie there
    node.replace_all_uses_with(result)
    program.graph.erase_node(node)
