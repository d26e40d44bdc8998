"""Takes norms over all heads apart into their statistics and the rest, so that heads can be split before them.

A norm over the features of all heads, before these are told apart, keeps columns of the matmul before it from being
split: no device has all features of a token. Of a sum of squares, or of features, each device has a term, a number a
token, and everything else is elementwise. Which norms these are is what is wanted of their results (to be split by
features), and what they read: columns of a matmul. The stream of a model, of which all devices want all features, is
none of these.

The operations are those that PyTorch computes the norm of, in the same dtypes, but for the order in which numbers are
added; statistics are in float32 at least. Of a layer norm each device has those of its features (how many, their mean,
the squared deviations from it), which are gathered in one exchange and combined by all alike: no digits are lost where
the mean is large. It pays where no device may hold the weights whole; where tokens are split, the one operation is
faster. So it is for programs that a group of devices computes under ``tensor``, and no others: it changes last bits.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch.fx import Node

from ...compiler.ir.ops import COMBINED_STATISTICS, ROW_STATISTICS
from ...compiler.ir.program import Program, origin_of, tensors_of
from ...compiler.ir.value import TensorType, dense_stride
from ...compiler.states.strategy import argument, name_of, shape_of
from ..placement.blocks import FindBlocks
from .candidates import MATMULS, wanted
from .folding import folded

_ATEN = torch.ops.aten
_HALVES = (torch.float16, torch.bfloat16)
_NORMS = frozenset({"rms_norm", "layer_norm"})


def with_statistics(program: Program, shares: Sequence[int] = (1, 1)) -> Program:
    """A copy of a program whose norms over features that are wanted split are taken apart."""
    copy = program.copy()
    take_norms_apart(copy, shares)
    return copy


def take_norms_apart(program: Program, shares: Sequence[int] = (1, 1)) -> int:
    """Takes norms of a program over features that are wanted split apart; returns how many.

    Equal programs are so changed alike: nodes of one and of its copy have the same names before and after.
    """
    if not program.blocks:
        FindBlocks().run(program)
    whole, fresh, count = folded(program), program.fresh_storages(), 0
    wants = wanted(whole, shares)
    for node in filter(_is_of_matmul, whole.nodes):
        if any(state.axis == len(shape_of(node)) - 1 for state in wants.get((node, 0), ())):
            for like in whole.likes[node]:
                _take_apart(program, like, len(shares), fresh)
                count += 1
    return count


def _is_of_matmul(node: Node) -> bool:
    """Whether a node is a norm over the last axis of what a matmul yields, or of a piece of that."""
    if name_of(node) not in _NORMS or len(argument(node, 1, "normalized_shape")) != 1:
        return False
    (made,) = node.args[:1]
    while isinstance(made, Node) and made.op == "call_function" and name_of(made) not in MATMULS:
        if len([one for one in made.all_input_nodes if tensors_of(one)]) != 1:
            return False
        made = made.args[0]
    return isinstance(made, Node) and made.op == "call_function"


@dataclass(frozen=True)
class _Writer:
    """Adds operations before a node, with memory of their own."""

    program: Program
    before: Node
    fresh: Iterator[int]

    def add(
        self,
        target: Any,
        *args: Any,
        like: Node,
        dtype: torch.dtype | None = None,
        shape: tuple[int | str, ...] | None = None,
        within: Node | None = None,
    ) -> Node:
        """An operation whose result is like that of another one, or of another shape, and may lie within a third."""
        (kind,) = tensors_of(like)
        shape = kind.shape if shape is None else shape
        storage = next(self.fresh) if within is None else tensors_of(within)[0].storage
        value = TensorType(shape, dtype or kind.dtype, dense_stride(shape), storage)
        with self.program.graph.inserting_before(self.before):
            made = self.program.graph.call_function(target, args)
        made.meta = {"value": value, "origin": origin_of(self.before)}
        return made

    def mean(self, x: Node, size: int) -> Node:
        """The mean of the features of each row, by their sum."""
        total = self.add(_ATEN.sum.dim_IntList, x, [-1], True, like=x, shape=(*shape_of(x)[:-1], 1))
        return self.add(_ATEN.div.Tensor, total, size, like=total)

    def mean_and_variance(self, x: Node, parts: int) -> tuple[Node, Node]:
        """The mean and the variance of the features of each row, by those of so many parts of these at most."""
        rows = shape_of(x)[:-1]
        each = self.add(ROW_STATISTICS, x, parts, like=x, shape=(parts, *rows, 3))
        both = self.add(COMBINED_STATISTICS, each, like=x, shape=(2, *rows, 1))
        select = _ATEN.select.int
        mean, variance = (self.add(select, both, 0, at, like=x, shape=(*rows, 1), within=both) for at in (0, 1))
        return mean, variance


def _take_apart(program: Program, node: Node, parts: int, fresh: Iterator[int]) -> None:
    """Puts the operations of a norm in the place of one, for so many devices at most."""
    x, (size,), weight = node.args[0], argument(node, 1, "normalized_shape"), argument(node, 2, "weight")
    assert isinstance(x, Node)
    add, dtype, is_layer = _Writer(program, node, fresh), tensors_of(x)[0].dtype, name_of(node) == "layer_norm"
    is_half = dtype in _HALVES
    wide = add.add(_ATEN.to.dtype, x, torch.float32, like=x, dtype=torch.float32) if is_half else x
    given = argument(node, 4, "eps", 1e-5) if is_layer else argument(node, 3, "eps")
    least = torch.finfo(tensors_of(wide)[0].dtype).eps if given is None else given
    if is_layer:
        mean, square = add.mean_and_variance(wide, parts)
        wide = add.add(_ATEN.sub.Tensor, wide, mean, like=wide)
    else:
        square = add.mean(add.add(_ATEN.mul.Tensor, wide, wide, like=wide), size)
    root = add.add(_ATEN.rsqrt.default, add.add(_ATEN.add.Tensor, square, least, like=square), like=square)
    result = add.add(_ATEN.mul.Tensor, wide, root, like=wide)
    if is_layer and weight is not None:
        result = add.add(_ATEN.mul.Tensor, result, weight, like=result)
    if is_layer and argument(node, 3, "bias") is not None:
        result = add.add(_ATEN.add.Tensor, result, argument(node, 3, "bias"), like=result)
    result = add.add(_ATEN.to.dtype, result, dtype, like=result, dtype=dtype) if is_half else result
    if not is_layer and weight is not None:  # which is rounded before it is scaled, as PyTorch has it
        result = add.add(_ATEN.mul.Tensor, result, weight, like=node if _has_dtype(weight, dtype) else wide)
        if not _has_dtype(weight, dtype):
            result = add.add(_ATEN.to.dtype, result, dtype, like=node, dtype=dtype)
    own = tensors_of(node)[0].storage
    result.meta["value"] = replace(result.meta["value"], storage=own)
    node.replace_all_uses_with(result)
    program.graph.erase_node(node)


def _has_dtype(weight: Any, dtype: torch.dtype) -> bool:
    return tensors_of(weight)[0].dtype == dtype
