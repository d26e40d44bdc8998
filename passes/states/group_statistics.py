"""Takes group norms apart into their statistics and the rest, so that pictures can be split in space.

Each device has the statistics of its part of a group (how many elements, their mean, the squared deviations from it),
which are gathered and combined by all of them alike; everything else is elementwise. So a norm takes one exchange of a
few numbers. The results differ from those of the one operation by rounding.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import torch
from torch.fx import Node

from ...compiler.ir.ops import COMBINED_STATISTICS, GROUP_NORM_BY, GROUP_STATISTICS, statistics_dtype
from ...compiler.ir.program import Program, origin_of, tensors_of
from ...compiler.ir.value import TensorType, dense_stride
from ...compiler.states.strategy import argument, name_of

_EPS = 1e-5


def take_group_norms_apart(program: Program, parts: int) -> int:
    """Takes group norms of a program over axes in space apart, for so many devices at most; returns how many.

    Equal programs are so changed alike: nodes of one and of its copy have the same names before and after.
    """
    found, fresh = list(filter(_is_in_space, program.ops())), program.fresh_storages()
    for node in found:
        _take_apart(program, node, parts, fresh)
    return len(found)


def _is_in_space(node: Node) -> bool:
    return (
        name_of(node) == "group_norm"
        and len(sizes := tensors_of(node)[0].shape) > 2
        and all(isinstance(size, int) for size in sizes)
    )


def _take_apart(program: Program, node: Node, parts: int, fresh: Iterator[int]) -> None:
    """Puts statistics of parts, those of all together and a norm by these in the place of a group norm."""
    x, groups = node.args[0], argument(node, 1, "num_groups")
    assert isinstance(x, Node)
    (made,) = tensors_of(node)
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
    each = add(GROUP_STATISTICS, (parts, *of_groups, 3), exact, x, groups, parts)
    statistics = add(COMBINED_STATISTICS, (2, *of_groups, 1), exact, each)
    weight, bias = argument(node, 2, "weight"), argument(node, 3, "bias")
    eps = float(argument(node, 4, "eps", _EPS))
    result = add(GROUP_NORM_BY, made.sizes, made.dtype, x, statistics, weight, bias, groups, eps)
    result.meta["value"] = replace(
        result.meta["value"], stride=made.stride, storage=made.storage
    )  # views of it say that they lie there
    node.replace_all_uses_with(result)
    program.graph.erase_node(node)
