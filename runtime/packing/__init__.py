"""Packs numbers into the types of GGUF: those that the gguf package can write by it, the other ones here."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from ...compiler.checkpoints.quantized_types import block_of, packed_shape
from ...compiler.errors import WeightError

__all__ = ["pack"]

_AT_ONCE = 2**17  # numbers: what is worked on stays in the processor's cache
_LARGEST_HALF = 65504.0


def pack(values: NDArray[np.float32], quant: str) -> NDArray[np.uint8]:
    """The rows of a weight in a type, as bytes: what ``gguf.quants.dequantize`` reads.

    Args:
        values: rows of numbers, along the last dimension.
        quant: one of ``QUANT_TYPES``.

    Raises:
        WeightError: a row is no whole number of blocks, or a number is too large for the type, or none.
    """
    shape = packed_shape(quant, values.shape)
    if quant != "F32" and values.size:
        _check_range(values, quant)
    # The scale of tiny numbers vanishes in half precision, and they with it: that they overflow before is no matter.
    with np.errstate(over="ignore", invalid="ignore", divide="ignore"):
        return _packed(np.ascontiguousarray(values, np.float32), quant).reshape(shape)


def _packed(values: NDArray[np.float32], quant: str) -> NDArray[np.uint8]:
    from gguf import GGMLQuantizationType
    from gguf.quants import quantize

    from .blocks import PACKERS

    if quant not in PACKERS:
        packed: NDArray[np.uint8] = quantize(values, GGMLQuantizationType[quant]).view(np.uint8)
        return packed
    blocks = values.reshape(-1, block_of(quant)[0])
    step = _AT_ONCE // blocks.shape[1]
    out = np.empty((len(blocks), block_of(quant)[1]), np.uint8)
    for start in range(0, len(blocks), step):
        out[start : start + step] = PACKERS[quant](blocks[start : start + step])
    return out


def _check_range(values: NDArray[np.float32], quant: str) -> None:
    """Scales of blocks are half precision, and so is F16; in BF16 and F32 everything has a place."""
    if quant == "BF16":
        return
    largest = float(np.abs(values).max())
    if quant == "F16" and not np.isfinite(largest):
        values = values[np.isfinite(values)]
        largest = float(np.abs(values).max(initial=0))
    if not np.isfinite(largest):
        raise WeightError(f"it holds numbers that are not finite, which {quant} cannot say: keep it in BF16 or F32")
    if largest > _LARGEST_HALF:
        raise WeightError(
            f"it holds numbers up to {largest:.3g}, and {quant} reaches {_LARGEST_HALF:.0f}: keep it in BF16 or F32"
        )
