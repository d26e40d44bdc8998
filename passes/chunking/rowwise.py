"""Says of an operation whether some rows of its result need only the same rows of its operands."""

from __future__ import annotations

import operator
from collections.abc import Iterable
from typing import Any

import torch
from torch.fx import Node

from ...compiler.ir.aliasing import argument_of
from ...compiler.ir.ops import LINEAR
from ...compiler.ir.pointwise import is_pointwise
from ...compiler.ir.program import tensors_of, value_of, weight_name
from ...compiler.ir.value import TensorType

aten = torch.ops.aten

ATTENTION = aten.scaled_dot_product_attention.default
MATMULS = LINEAR | {aten.matmul.default, aten.bmm.default, ATTENTION}
"""The operations whose first operand has the rows of the result."""

_ALONG_DIM = frozenset(
    {
        aten.chunk.default,
        aten.split.Tensor,
        aten.split_with_sizes.default,
        aten.slice.Tensor,
        aten.softmax.int,
        aten._softmax.default,
    }
)
"""Operations on the rows of their first operand alone, unless it is the rows that they go along."""

_NORMS = frozenset({aten.layer_norm.default, aten.rms_norm.default})


def sliced_operands(node: Node, dim: int, rows: int) -> list[Node] | None:
    """The operands of which rows of a node's result need the same rows, where dimension ``dim`` has ``rows`` of them.

    The other operands are read whole. None for an operation of which that is not known.
    """
    if not tensors_of(node) or not _has(node, dim, rows):
        return None
    if node.target is operator.getitem:
        return [node.args[0]]  # type: ignore[list-item]
    if node.target in MATMULS:
        return _of_matmul(node, dim, rows)
    if node.target is aten.cat.default:
        return _of_cat(node, dim, rows)
    if node.target in _ALONG_DIM:
        return _first(node, dim, rows) if _rank(argument_of(node, "dim"), node) != dim else None
    if node.target in _NORMS:
        inner = len(argument_of(node, "normalized_shape"))
        return _first(node, dim, rows) if dim < len(tensors_of(node)[0].shape) - inner else None
    if isinstance(value_of(node), TensorType) and is_pointwise(node.target, node.kwargs):
        return _of_pointwise(node, dim, rows)
    return None


def _rank(dim: Any, node: Node) -> int:
    """A dimension of a node's first operand, counted from the front."""
    count = len(tensors_of(node.args[0])[0].shape)  # type: ignore[arg-type]
    return int(dim) % count


def _first(node: Node, dim: int, rows: int) -> list[Node] | None:
    first = node.args[0]
    return [first] if isinstance(first, Node) and _has(first, dim, rows) else None


def _has(node: Node, dim: int, rows: int) -> bool:
    return all(len(one.shape) > dim and one.shape[dim] == rows for one in tensors_of(node))


def _of_matmul(node: Node, dim: int, rows: int) -> list[Node] | None:
    """The first operand, and a mask of attention that has the rows; on a dimension of its own, before the last."""
    found = _first(node, dim, rows)
    rank = len(tensors_of(node)[0].shape)
    if found is None or (dim != rank - 2 and node.target not in LINEAR) or dim > rank - 2:
        return None
    first = found[0]
    if len(tensors_of(first)[0].shape) != rank or any(one is first for one in _nodes(node.args[1:])):
        return None
    if node.target is not ATTENTION:
        return found
    if argument_of(node, "is_causal") or argument_of(node, "dropout_p"):
        return None
    mask = argument_of(node, "attn_mask")
    return found if not isinstance(mask, Node) else _with_mask(first, mask, rows)


def _with_mask(query: Node, mask: Node, rows: int) -> list[Node] | None:
    shape = tensors_of(mask)[0].shape
    if len(shape) < 2 or shape[-2] == 1:
        return [query]
    return [query, mask] if shape[-2] == rows and len(shape) == len(tensors_of(query)[0].shape) else None


def _of_cat(node: Node, dim: int, rows: int) -> list[Node] | None:
    given: Any = node.args[0]
    if _rank_of_cat(node) == dim or not all(_has(one, dim, rows) for one in given):
        return None
    return list(given)


def _rank_of_cat(node: Node) -> int:
    return int(argument_of(node, "dim")) % len(tensors_of(node)[0].shape)


def _of_pointwise(node: Node, dim: int, rows: int) -> list[Node] | None:
    """The operands that have the rows; those that have one, or none, are the same for all rows."""
    rank, found = len(tensors_of(node)[0].shape), []
    for one in _nodes((*node.args, *node.kwargs.values())):
        for tensor in tensors_of(one):
            at = dim - (rank - len(tensor.shape))
            if at < 0 or tensor.shape[at] == 1:
                continue
            if at != dim or tensor.shape[at] != rows or weight_name(one):
                return None
            found.append(one)
    return found


def _nodes(values: Iterable[Any]) -> list[Node]:
    return [one for one in values if isinstance(one, Node)]
