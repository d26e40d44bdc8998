"""The operations that programs have beyond ATen's: their schemas, and what they yield. Kernels are in runtime/.

``quant`` is a type of ``quantization.QUANT_TYPES``; ``packed`` are uint8 rows in it.
"""

from __future__ import annotations

import torch
from torch._prims_common import suggest_memory_format

from ..checkpoints.quantized_types import block_of

LIBRARY = torch.library.Library("dovetail", "FRAGMENT")
LIBRARY.define("quantized_linear(Tensor x, Tensor packed, Tensor? bias, str quant) -> Tensor")
LIBRARY.define("quantized_embedding(Tensor packed, Tensor indices, str quant, ScalarType dtype) -> Tensor")
LIBRARY.define("dequantize(Tensor packed, str quant, ScalarType dtype) -> Tensor")
LIBRARY.define("grouped_mm(Tensor x, Tensor weights, Tensor offs) -> Tensor")
LIBRARY.define("terms(Tensor(a) x, int count) -> Tensor(a)")
LIBRARY.define("sum_terms(Tensor terms, ScalarType? dtype=None) -> Tensor")
LIBRARY.define("row_statistics(Tensor x, int parts) -> Tensor")
LIBRARY.define("group_statistics(Tensor x, int groups, int parts) -> Tensor")
LIBRARY.define("combined_statistics(Tensor parts) -> Tensor")
LIBRARY.define(
    "group_norm_by(Tensor x, Tensor statistics, Tensor? weight, Tensor? bias, int groups, float eps) -> Tensor"
)
LIBRARY.define(
    "causal_attention_of_rows(Tensor query, Tensor key, Tensor value, int first, *, float? scale=None,"
    " bool enable_gqa=False) -> Tensor"
)
LIBRARY.define("transfer(Tensor x, *, Device device) -> Tensor")
LIBRARY.define("reshard(Tensor x, *, Device device) -> Tensor")


def columns_of(packed: torch.Tensor, quant: str) -> int:
    """How many numbers a packed row holds."""
    elements, nbytes = block_of(quant)
    return packed.shape[-1] // nbytes * elements


@torch.library.register_fake("dovetail::quantized_linear", lib=LIBRARY)  # type: ignore[untyped-decorator]
def _linear(x: torch.Tensor, packed: torch.Tensor, bias: torch.Tensor | None, quant: str) -> torch.Tensor:
    """The last dimension of x against the rows, as ``linear`` has it, in the dtype of x."""
    if x.shape[-1] != columns_of(packed, quant):
        raise RuntimeError(f"x has {x.shape[-1]} columns, the {quant} weight {columns_of(packed, quant)}")
    return x.new_empty((*x.shape[:-1], packed.shape[0]))


@torch.library.register_fake("dovetail::quantized_embedding", lib=LIBRARY)  # type: ignore[untyped-decorator]
def _embedding(packed: torch.Tensor, indices: torch.Tensor, quant: str, dtype: torch.dtype) -> torch.Tensor:
    return packed.new_empty((*indices.shape, columns_of(packed, quant)), dtype=dtype)


@torch.library.register_fake("dovetail::dequantize", lib=LIBRARY)  # type: ignore[untyped-decorator]
def _dequantize(packed: torch.Tensor, quant: str, dtype: torch.dtype) -> torch.Tensor:
    return packed.new_empty((*packed.shape[:-1], columns_of(packed, quant)), dtype=dtype)


@torch.library.register_fake("dovetail::grouped_mm", lib=LIBRARY)  # type: ignore[untyped-decorator]
def _grouped(x: torch.Tensor, weights: torch.Tensor, offs: torch.Tensor) -> torch.Tensor:
    """Rows against the matrix of their group, as ``torch.nn.functional.grouped_mm``, which traces in bf16 alone."""
    if x.dim() != 2 or weights.dim() != 3 or x.shape[1] != weights.shape[1] or offs.shape != weights.shape[:1]:
        raise RuntimeError(f"{tuple(x.shape)} rows do not fit {tuple(weights.shape)} matrices by {tuple(offs.shape)}")
    return x.new_empty((x.shape[0], weights.shape[2]))


@torch.library.register_fake("dovetail::transfer", lib=LIBRARY)  # type: ignore[untyped-decorator]
@torch.library.register_fake("dovetail::reshard", lib=LIBRARY)  # type: ignore[untyped-decorator]
def _moved(x: torch.Tensor, device: torch.device) -> torch.Tensor:
    """A copy on another device, with the strides that the value really has."""
    return torch.empty_strided(x.shape, x.stride(), dtype=x.dtype, device=device)


@torch.library.register_fake("dovetail::terms", lib=LIBRARY)  # type: ignore[untyped-decorator]
def _terms(x: torch.Tensor, count: int) -> torch.Tensor:
    """So many terms, one behind another; each device has its own."""
    return x.unsqueeze(0).expand(count, *x.shape)


@torch.library.register_fake("dovetail::sum_terms", lib=LIBRARY)  # type: ignore[untyped-decorator]
def _sum_terms(terms: torch.Tensor, dtype: torch.dtype | None = None) -> torch.Tensor:
    return terms.new_empty(terms.shape[1:], dtype=dtype)


def adding_dtype(dtype: torch.dtype) -> torch.dtype:
    """The dtype in which terms of a dtype are added: float32 for short floats, all others in their own."""
    return torch.float32 if dtype in (torch.bfloat16, torch.float16) else dtype


def statistics_dtype(dtype: torch.dtype) -> torch.dtype:
    """The dtype of statistics of values in a dtype: float32, or a longer one."""
    return torch.promote_types(dtype, torch.float32)


@torch.library.register_fake("dovetail::row_statistics", lib=LIBRARY)  # type: ignore[untyped-decorator]
def _row_statistics(x: torch.Tensor, parts: int) -> torch.Tensor:
    return x.new_empty((parts, *x.shape[:-1], 3), dtype=statistics_dtype(x.dtype))


@torch.library.register_fake("dovetail::group_statistics", lib=LIBRARY)  # type: ignore[untyped-decorator]
def _group_statistics(x: torch.Tensor, groups: int, parts: int) -> torch.Tensor:
    return x.new_empty((parts, x.shape[0], groups, 3), dtype=statistics_dtype(x.dtype))


@torch.library.register_fake("dovetail::combined_statistics", lib=LIBRARY)  # type: ignore[untyped-decorator]
def _combined_statistics(parts: torch.Tensor) -> torch.Tensor:
    if parts.shape[-1] != 3:
        raise RuntimeError(f"statistics of parts are three numbers each, not {parts.shape[-1]}")
    return parts.new_empty((2, *parts.shape[1:-1], 1))


@torch.library.register_fake("dovetail::group_norm_by", lib=LIBRARY)  # type: ignore[untyped-decorator]
def _group_norm_by(
    x: torch.Tensor,
    statistics: torch.Tensor,
    weight: torch.Tensor | None,
    bias: torch.Tensor | None,
    groups: int,
    eps: float,
) -> torch.Tensor:
    return x.new_empty(x.shape).contiguous(memory_format=suggest_memory_format(x))


@torch.library.register_fake("dovetail::causal_attention_of_rows", lib=LIBRARY)  # type: ignore[untyped-decorator]
def _causal_attention_of_rows(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    first: int,
    *,
    scale: float | None = None,
    enable_gqa: bool = False,
) -> torch.Tensor:
    return torch.nn.functional.scaled_dot_product_attention(query, key, value, scale=scale, enable_gqa=enable_gqa)


CAUSAL_ATTENTION_OF_ROWS = torch.ops.dovetail.causal_attention_of_rows.default
"""Causal attention of some rows of queries with all keys and values; ``first`` is the place of the first row."""

ROW_STATISTICS = torch.ops.dovetail.row_statistics.default
"""How many numbers lie in each row, their mean, and the sum of their squared deviations from it, as the first of so
many ``parts``; the others have none. Where devices have parts of rows, each has a part of these that is its own."""

GROUP_STATISTICS = torch.ops.dovetail.group_statistics.default
"""The same of the elements of each group of channels of each picture."""

COMBINED_STATISTICS = torch.ops.dovetail.combined_statistics.default
"""The mean, and behind it the variance, of what parts have together by the statistics of each, in their order."""

GROUP_NORM_BY = torch.ops.dovetail.group_norm_by.default
"""Group norm of elements by the mean and the variance of their group, which are known."""

TERMS = torch.ops.dovetail.terms.default
"""The terms of a sum of which each device of a group has one, as a value of their own, one behind another."""

SUM_TERMS = torch.ops.dovetail.sum_terms.default
"""What terms add up to: in their order, short floats in float32, rounded once to ``dtype``, or to theirs."""

TRANSFER = torch.ops.dovetail.transfer.default
"""Brings a value, as its memory is at this place of the graph, from its device to that of the node.

It lands in memory of its own, with the strides that it really has. The schedule carries it out; it has no kernel.
"""

RESHARD = torch.ops.dovetail.reshard.default
"""Has a value, as its memory is at this place of the graph, in another state, or on the devices of another group.

What is to be done follows from the states of its operand and of itself (``compiler/ir/state.py``): of a value that is
split each device of the group gathers the parts, into memory of its own; one that is whole is brought to those of the
group that do not have it. A transfer is a reshard between groups of one. The schedule carries it out; it has no kernel.
"""

LINEAR = frozenset({torch.ops.aten.linear.default, torch.ops.dovetail.quantized_linear.default})
"""The operations ``op(x, weight, bias, …)`` whose result has a column for each row of the weight."""
