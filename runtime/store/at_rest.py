"""Memory for weights that are brought to a device: each has there the strides that it has where it rests."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from ...compiler.ir.weight import Weight
from .stored_weight import StoredWeight


def memory_for(one: StoredWeight, weight: Weight, device: torch.device) -> torch.Tensor:
    """Memory for a weight, or a part of one, on a device, with the strides that it has at rest."""
    shape, dtype = weight.stored
    strides = _strides(one, shape)
    return (
        torch.empty(shape, dtype=dtype, device=device)
        if strides is None
        else torch.empty_strided(shape, strides, dtype=dtype, device=device)
    )


def place_in(memory: torch.Tensor, start: int, one: StoredWeight, weight: Weight) -> torch.Tensor:
    """The memory for a weight that begins at a byte of a slot, with the strides that it has at rest."""
    shape, dtype = weight.stored
    place = memory[start : start + weight.nbytes].view(dtype).view(shape)
    strides = _strides(one, shape)
    return place if strides is None else place.as_strided(shape, strides)


def _strides(one: StoredWeight, shape: tuple[int, ...]) -> tuple[int, ...] | None:
    """The strides of a whole weight at rest, where they are not the default: of dimensions of one, too."""
    if tuple(one.tensor.shape) != shape:
        return None
    strides = one.tensor.stride()
    if not _is_dense(shape, strides):  # asked of a stand-in, for another stream may write the tensor
        strides = torch.empty_like(torch.empty_strided(shape, strides, device="meta")).stride()
    return None if strides == torch.empty(shape, device="meta").stride() else strides


def _is_dense(shape: Sequence[int], strides: Sequence[int]) -> bool:
    """Whether a tensor fills the memory that it lies in, in some order of dimensions, which a copy keeps."""
    expected = 1
    for step, size in sorted((step, size) for size, step in zip(shape, strides, strict=True) if size != 1):
        if step != expected:
            return False
        expected *= size
    return True
