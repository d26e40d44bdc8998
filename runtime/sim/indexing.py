"""Ops that take what CUDA's do: tensors with dimensions from the host beside those of a device, integers to count."""

from __future__ import annotations

from typing import Any

import torch
from torch._ops import OpOverload

from .tensor import HANDLERS, SimTensor, aten, compute

_INDEXING = (
    aten.index.Tensor, aten.index.Tensor_out, aten._unsafe_index.Tensor, aten.index_put.default, aten.index_put.out,
    aten.index_put_.default, aten._index_put_impl_.default, aten._unsafe_index_put.default,
)  # fmt: skip


def install() -> None:
    """Tells the dispatcher which ops bring operands from the host themselves."""
    for func in _INDEXING:
        HANDLERS[func] = _index
    HANDLERS[aten.tensor_split.tensor_indices_or_sections] = _split
    HANDLERS[aten._pack_padded_sequence.default] = _pack
    HANDLERS[aten.histc.default] = _count


def _index(func: OpOverload, args: Any, kwargs: dict[str, Any]) -> Any:
    """Indexes a tensor; indices and masks on the CPU are copied to its device."""
    source, indices, *rest = args
    if type(source) is SimTensor:
        indices = [_bring(one, source.device) for one in indices]
    return compute(func, (source, indices, *rest), kwargs)


def _bring(index: torch.Tensor | None, device: torch.device) -> torch.Tensor | None:
    return index.to(device) if index is not None and index.device.type == "cpu" else index


def _split(func: OpOverload, args: Any, kwargs: dict[str, Any]) -> Any:
    """Splits at positions that must lie on the CPU."""
    if type(args[1]) is SimTensor:
        raise RuntimeError(f"tensor_split takes its positions from the CPU, and they are on {args[1].device}")
    return func.decompose(*args, **kwargs)


def _pack(func: OpOverload, args: Any, kwargs: dict[str, Any]) -> Any:
    """Packs sequences whose lengths must lie on the CPU, where the sizes of the steps stay too."""
    if type(args[1]) is SimTensor:
        raise RuntimeError(f"_pack_padded_sequence takes lengths from the CPU, and they are on {args[1].device}")
    packed, sizes = compute(func, (args[0], args[1].to(args[0].device), *args[2:]), kwargs)
    return packed, sizes.cpu()


def _count(func: OpOverload, args: Any, kwargs: dict[str, Any]) -> Any:
    """Counts integers as accelerators do; the CPU's kernel counts numbers with a fraction alone."""
    if args[0].dtype.is_floating_point:
        return compute(func, args, kwargs)
    return compute(func, (args[0].double(), *args[1:]), kwargs).to(args[0].dtype)
