"""Triton, where it is installed and knows the device: a weight is unpacked in one launch, to the bits of layouts.py.

Whether it does is not taken on trust: before the first use of a type on a device its numbers are compared with those of
plain torch there. Where they differ, or where Triton cannot compile, plain torch it is, with one warning.
"""

from __future__ import annotations

import logging
from functools import cache
from importlib.util import find_spec
from typing import Any

import torch
from torch import Tensor

from ...compiler.checkpoints.quantized_types import block_of
from ..devices.accelerator import accelerator_of
from .layouts import LAYOUTS, curve_on
from .native import may_leave_torch

_log = logging.getLogger(__name__)
_DTYPES = frozenset({torch.float32, torch.float16, torch.bfloat16})
_SAMPLE = 67  # blocks


def unpacked_at_once(packed: Tensor, quant: str, out: Tensor) -> bool:
    """Writes the numbers of packed rows to ``out`` in one launch, both contiguous; returns whether it could."""
    if not may_leave_torch() or not _agrees(out.device, quant, out.dtype):
        return False
    _launch(packed, quant, out)
    return True


@cache
def _agrees(device: torch.device, quant: str, dtype: torch.dtype) -> bool:
    """Whether Triton gives a sample the bits of plain torch on a device; a warning says if not, where it was tried."""
    if dtype not in _DTYPES or not accelerator_of(device).runs_triton or _kernels() is None:
        return False
    try:
        if _sample_is_equal(device, quant, dtype):
            return True
        why = "the numbers of a sample differ"
    except Exception as error:
        why = f"{type(error).__name__}: {error}"
    _log.warning("Triton does not unpack %s on %s, plain PyTorch does: %s", quant, device, why)
    return False


def _sample_is_equal(device: torch.device, quant: str, dtype: torch.dtype) -> bool:
    elements, nbytes = block_of(quant)
    numbers = torch.arange(_SAMPLE * nbytes, device=device)
    blocks = (numbers * numbers * 40503 >> 7).bitwise_and_(255).to(torch.uint8).view(_SAMPLE, nbytes)
    expected = torch.empty(_SAMPLE, elements, device=device)
    LAYOUTS[quant].unpack(blocks, expected)
    found = torch.empty(_SAMPLE, elements, dtype=dtype, device=device)
    _launch(blocks, quant, found)
    return _same_bits(found, expected.to(dtype))


def _same_bits(one: Tensor, other: Tensor) -> bool:
    """Whether two tensors have the same bits, apart from those of numbers that are none."""
    words = torch.int32 if one.dtype == torch.float32 else torch.int16
    missing = one.isnan()
    same = one.view(words) == other.view(words)
    return bool(torch.equal(missing, other.isnan()) and (same | missing).all())


def _launch(packed: Tensor, quant: str, out: Tensor) -> None:
    bf16 = out.dtype == torch.bfloat16
    with accelerator_of(out.device).as_current():
        _kernels().launch(packed, quant, out.view(torch.int16) if bf16 else out, curve_on(out.device), bf16)


@cache
def _kernels() -> Any:
    """The module of the kernels, or None where Triton is not installed."""
    if find_spec("triton") is None:
        return None
    try:
        from . import triton_kernels
    except Exception as error:  # an installation may be broken in any way
        _log.warning("Triton is installed and cannot be imported, plain PyTorch unpacks weights: %s", str(error))
        return None
    return triton_kernels
