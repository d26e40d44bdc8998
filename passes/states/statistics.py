"""Takes norms over all heads apart into their statistics and the rest, so that heads can be split before them.

A root mean square norm over the features of all heads, before these are told apart, keeps columns of the matmul before
it from being split: no device has all features of a token. Of its sum of squares each device has a term, a number a
token, and everything else is elementwise. Which norms these are is what is wanted of their results: to be split by
features.

The operations are those that PyTorch computes the norm of, in the same dtypes, but for the order in which squares are
added. It pays where no device may hold the weights whole; where tokens are split, the one operation is faster.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch.fx import Node

from ...compiler.ir.program import Program, origin_of, tensors_of
from ...compiler.ir.value import TensorType, dense_stride
from ...compiler.states.strategy import argument, name_of, shape_of
from .candidates import wanted
from .folding import folded

_ATEN = torch.ops.aten
_HALVES = (torch.float16, torch.bfloat16)


def with_statistics(program: Program) -> Program:
    """A copy of a program whose norms over features that are wanted split are taken apart."""
    copy = program.copy()
    whole, fresh = folded(copy), copy.fresh_storages()
    wants = wanted(whole, (1, 1))
    for node in filter(_is_over_features, whole.nodes):
        if any(state.axis == len(shape_of(node)) - 1 for state in wants.get((node, 0), ())):
            for like in whole.likes[node]:
                _take_apart(copy, like, fresh)
    return copy


def _is_over_features(node: Node) -> bool:
    return name_of(node) == "rms_norm" and len(argument(node, 1, "normalized_shape")) == 1


@dataclass(frozen=True)
class _Writer:
    """Adds operations before a node, with memory of their own."""

    program: Program
    before: Node
    fresh: Iterator[int]

    def add(self, target: Any, *args: Any, like: Node, dtype: torch.dtype | None = None, rows: bool = False) -> Node:
        """An operation whose result is like that of another one; of ``rows`` it has one number each."""
        (kind,) = tensors_of(like)
        shape = (*kind.shape[:-1], 1) if rows else kind.shape
        hint = (*kind.hint[:-1], 1) if rows and kind.hint else kind.hint
        value = TensorType(shape, dtype or kind.dtype, dense_stride(shape), next(self.fresh), hint)
        with self.program.graph.inserting_before(self.before):
            made = self.program.graph.call_function(target, args)
        made.meta = {"value": value, "origin": origin_of(self.before)}
        return made


def _take_apart(program: Program, node: Node, fresh: Iterator[int]) -> None:
    """Puts the operations of a root mean square norm in the place of one."""
    x, (size,), weight = node.args[0], argument(node, 1, "normalized_shape"), argument(node, 2, "weight")
    assert isinstance(x, Node)
    add, dtype = _Writer(program, node, fresh).add, tensors_of(x)[0].dtype
    is_half = dtype in _HALVES
    wide = add(_ATEN.to.dtype, x, torch.float32, like=x, dtype=torch.float32) if is_half else x
    given = argument(node, 3, "eps")
    least = torch.finfo(tensors_of(wide)[0].dtype).eps if given is None else given
    total = add(_ATEN.sum.dim_IntList, add(_ATEN.mul.Tensor, wide, wide, like=wide), [-1], True, like=wide, rows=True)
    mean = add(_ATEN.add.Tensor, add(_ATEN.div.Tensor, total, size, like=total), least, like=total)
    result = add(_ATEN.mul.Tensor, wide, add(_ATEN.rsqrt.default, mean, like=mean), like=wide)
    result = add(_ATEN.to.dtype, result, dtype, like=result, dtype=dtype) if is_half else result
    result = result if weight is None else add(_ATEN.mul.Tensor, result, weight, like=node)
    own = tensors_of(node)[0].storage
    result.meta["value"] = replace(result.meta["value"], storage=own)
    node.replace_all_uses_with(result)
    program.graph.erase_node(node)
