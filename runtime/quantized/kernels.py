"""The kernels of the operations in compiler/ir/ops.py, in plain torch, for every device."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from functools import lru_cache

import torch
from torch import Tensor

from ...compiler.checkpoints.quantized_types import block_of
from ...compiler.checkpoints.unpacking import Sizes
from ...compiler.ir.ops import LIBRARY, columns_of
from .rows import FLOATS, dequantize_rows, sizes_for

_GRAIN = 64  # a product of fewer rows may take a kernel that rounds differently


def _linear(x: Tensor, packed: Tensor, bias: Tensor | None, quant: str) -> Tensor:
    """The bits of ``linear`` with the whole weight unpacked to the dtype of x, one chunk of its rows at a time.

    It is the ``linear`` of a weight that requires a gradient, as parameters do: PyTorch then multiplies the rows of x
    as one matrix, however they lie, and does else not always.
    """
    count, is_matrix = packed.shape[0], x.dim() == 2
    out = x.new_empty((*x.shape[:-1], count))
    rows, result = (x, out) if is_matrix else (x.reshape(-1, x.shape[-1]), out.view(-1, count))
    begins = bias if is_matrix or x.is_contiguous() else None  # what is multiplied another way gets its bias after
    for start, stop, weight in _unpacked(packed, quant, x):
        is_all = stop - start == count  # then views of all would cost as much as a launch
        place = result if is_all else result[:, start:stop]
        if begins is None:
            torch.mm(rows, weight.t(), out=place)
        else:
            torch.addmm(begins if is_all else begins[start:stop], rows, weight.t(), out=place)
    return out if bias is None or begins is not None else out.add_(bias)


def _unpacked(packed: Tensor, quant: str, x: Tensor) -> Iterable[tuple[int, int, Tensor]]:
    """Ranges of rows, and the weight's there in the dtype of x; each is gone with the next one."""
    if FLOATS.get(quant) == x.dtype:
        return ((0, packed.shape[0], packed.view(x.dtype)),)
    sizes = sizes_for(packed.device)
    columns, spans = _spans_of(packed.shape, quant, x.dtype.itemsize, sizes.chunk)
    if len(spans) == 1:
        weight = x.new_empty((packed.shape[0], columns))
        dequantize_rows(packed, quant, weight, sizes)
        return ((0, packed.shape[0], weight),)
    return _in_spans(packed, quant, x.new_empty((max(stop - start for start, stop in spans), columns)), spans, sizes)


def _in_spans(
    packed: Tensor, quant: str, chunk: Tensor, spans: Sequence[tuple[int, int]], sizes: Sizes
) -> Iterator[tuple[int, int, Tensor]]:
    for start, stop in spans:
        weight = chunk[: stop - start]
        dequantize_rows(packed[start:stop], quant, weight, sizes)
        yield start, stop, weight


@lru_cache(maxsize=4096)
def _spans_of(shape: torch.Size, quant: str, itemsize: int, chunk: int) -> tuple[int, tuple[tuple[int, int], ...]]:
    """The columns of packed rows, and the ranges of rows of which at most ``chunk`` bytes are unpacked at once."""
    elements, nbytes = block_of(quant)
    columns = shape[-1] // nbytes * elements
    return columns, tuple(_spans(shape[0], chunk // (columns * itemsize) - _GRAIN))


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
