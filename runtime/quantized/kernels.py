"""The kernels of the operations in compiler/ir/ops.py, in plain torch, for every device."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor

from ...compiler.ir.ops import LIBRARY, columns_of
from .rows import FLOATS, dequantize_rows, sizes_for

_GRAIN = 64  # a product of fewer rows may take a kernel that rounds differently


def _linear(x: Tensor, packed: Tensor, bias: Tensor | None, quant: str) -> Tensor:
    """The bits of ``linear`` with the whole weight unpacked to the dtype of x, one chunk of its rows at a time.

    It is the ``linear`` of a weight that requires a gradient, as parameters do: PyTorch then multiplies the rows of x
    as one matrix, however they lie, and does else not always.
    """
    out = x.new_empty((*x.shape[:-1], len(packed)))
    rows, result = x if x.dim() == 2 else x.reshape(-1, x.shape[-1]), out.view(-1, len(packed))
    begins = bias if x.dim() == 2 or x.is_contiguous() else None  # what is multiplied another way gets its bias after
    for start, stop, weight in _unpacked(packed, quant, x):
        if begins is None:
            torch.mm(rows, weight.t(), out=result[:, start:stop])
        else:
            torch.addmm(begins[start:stop], rows, weight.t(), out=result[:, start:stop])
    return out if bias is None or begins is not None else out.add_(bias)


def _unpacked(packed: Tensor, quant: str, x: Tensor) -> Iterator[tuple[int, int, Tensor]]:
    """Ranges of rows, and the weight's there in the dtype of x; each is gone with the next one."""
    if FLOATS.get(quant) == x.dtype:
        yield 0, len(packed), packed.view(x.dtype)
        return
    columns, sizes = columns_of(packed, quant), sizes_for(packed.device)
    spans = list(_spans(len(packed), sizes.chunk // (columns * x.dtype.itemsize) - _GRAIN))
    chunk = x.new_empty((max(stop - start for start, stop in spans), columns))
    for start, stop in spans:
        weight = chunk[: stop - start]
        dequantize_rows(packed[start:stop], quant, weight, sizes)
        yield start, stop, weight


def _spans(count: int, step: int) -> Iterator[tuple[int, int]]:
    """Ranges of at most ``step`` rows, on multiples of the grain; the last takes a remainder below it."""
    step = max(step // _GRAIN, 1) * _GRAIN
    start = 0
    while count - start >= step + _GRAIN:
        yield start, start + step
        start += step
    yield start, count


def _embedding(packed: Tensor, indices: Tensor, quant: str, dtype: torch.dtype) -> Tensor:
    """The rows at the indices, gathered packed and unpacked in chunks."""
    columns = columns_of(packed, quant)
    out = packed.new_empty((*indices.shape, columns), dtype=dtype)
    sizes = sizes_for(packed.device)
    step = max(1, sizes.chunk // packed.shape[1])
    for part, target in zip(indices.reshape(-1).split(step), out.view(-1, columns).split(step), strict=True):
        dequantize_rows(packed.index_select(0, part), quant, target, sizes)
    return out


def _dequantize(packed: Tensor, quant: str, dtype: torch.dtype) -> Tensor:
    """All numbers of a weight."""
    columns = columns_of(packed, quant)
    out = packed.new_empty((*packed.shape[:-1], columns), dtype=dtype)
    dequantize_rows(packed.reshape(-1, packed.shape[-1]), quant, out.view(-1, columns))
    return out


LIBRARY.impl("quantized_linear", _linear, "CompositeExplicitAutograd")
LIBRARY.impl("quantized_embedding", _embedding, "CompositeExplicitAutograd")
LIBRARY.impl("dequantize", _dequantize, "CompositeExplicitAutograd")
