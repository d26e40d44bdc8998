"""Memory for weights that are brought to a device: each has there the strides that it has where it rests."""

from __future__ import annotations

import torch

from ...compiler.ir.value import is_dense
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
    if not is_dense(shape, strides):  # asked of a stand-in, for another stream may write the tensor
        strides = torch.empty_like(torch.empty_strided(shape, strides, device="meta")).stride()
    return None if strides == torch.empty(shape, device="meta").stride() else strides
