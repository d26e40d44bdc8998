"""Turns packed rows into numbers, a piece of them at a time.

On the host a piece is taken apart while it is in the cache: what lies between its bytes and its numbers is a few small
tensors that the next piece uses again. On other devices a piece is as much as is worth its launches.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from ...compiler.checkpoints.quantized_types import FLOAT8, block_of
from ...compiler.checkpoints.unpacking import Sizes, sizes_on
from ..devices.accelerator import accelerator_of
from .fused import unpacked_at_once
from .layouts import LAYOUTS
from .native import native_unpack

FLOATS = {"F32": torch.float32, "F16": torch.float16, "BF16": torch.bfloat16, FLOAT8: torch.float8_e4m3fn}
"""The types whose rows are plain numbers."""


def sizes_for(device: torch.device) -> Sizes:
    """How much is unpacked at once on a device, which depends on what it has free."""
    accelerator = accelerator_of(device)
    return sizes_on(accelerator.is_host, None if accelerator.is_host else accelerator.room())


def dequantize_rows(packed: Tensor, quant: str, out: Tensor, sizes: Sizes | None = None) -> None:
    """Writes the numbers of packed rows to memory of any float dtype.

    In float32 they are those of gguf-py, to the bit; in another dtype those rounded.

    Args:
        packed: uint8 of shape (rows, bytes), contiguous.
        quant: their type.
        out: where the numbers go, of shape (rows, columns), contiguous.
        sizes: how much is taken apart at once; those for the device if left out.
    """
    if not out.numel():
        return
    elements, nbytes = block_of(quant)
    if packed.dim() != 2 or packed.shape[0] * packed.shape[1] * elements != out.numel() * nbytes:
        raise RuntimeError(f"{quant} rows of {tuple(packed.shape)} bytes do not fill numbers of {tuple(out.shape)}")
    if quant in FLOATS:
        out.copy_(packed.view(FLOATS[quant]))
        return
    if unpacked_at_once(packed, quant, out):
        return
    unpack = native_unpack(packed, quant) or _torch_unpack(quant)
    step = max(1, (sizes or sizes_for(out.device)).piece // out.shape[1])
    if out.dtype == torch.float32:
        for piece, numbers in zip(packed.split(step), out.split(step), strict=True):
            unpack(piece, numbers)
        return
    scratch = out.new_empty((min(step, len(out)), out.shape[1]), dtype=torch.float32)
    for piece, rounded in zip(packed.split(step), out.split(step), strict=True):
        numbers = scratch[: len(piece)]
        unpack(piece, numbers)
        rounded.copy_(numbers)


def _torch_unpack(quant: str) -> Callable[[Tensor, Tensor], None]:
    layout, (elements, nbytes) = LAYOUTS[quant], block_of(quant)
    return lambda piece, numbers: layout.unpack(piece.view(-1, nbytes), numbers.view(-1, elements))
