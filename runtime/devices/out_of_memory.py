"""Which errors mean that memory ran out, and which may have come up later than what caused them."""

from __future__ import annotations

import gc
import re
from collections.abc import Callable
from typing import TypeVar

import torch

from ...compiler.devices.device import KINDS

T = TypeVar("T")

_EXHAUSTED = re.compile(
    r"out of memory|cannot allocate memory|can't allocate memory|_ALLOC_FAILED|cudaErrorMemoryAllocation"
    r"|Failed to allocate memory|Invalid buffer size|ERROR_OUT_OF_(?:DEVICE_MEMORY|HOST_MEMORY|RESOURCES)",
    re.IGNORECASE,
)
_LATE = re.compile(
    r"device-side assert|illegal memory access|unspecified launch failure|misaligned address"
    r"|Native API failed|UR_RESULT_ERROR|PI_ERROR|level_zero backend failed"
)


def ran_out(error: BaseException) -> bool:
    """Whether an error means that memory ran out: PyTorch has a class for it on CUDA alone.

    MPS raises RuntimeError ("MPS backend out of memory"), cuBLAS and cuDNN report ALLOC_FAILED, pinning host memory
    raises AcceleratorError, and XPU's driver has names of its own ("Native API returns: 39 (UR_RESULT_ERROR_…)").
    """
    if isinstance(error, (torch.OutOfMemoryError, MemoryError)):
        return True
    return isinstance(error, RuntimeError) and _EXHAUSTED.search(str(error)) is not None


def came_late(error: BaseException) -> bool:
    """Whether a device reports an error of some earlier operation at a later one, because it runs behind the host."""
    return isinstance(error, RuntimeError) and _LATE.search(str(error)) is not None


def fetched(fetch: Callable[[], T]) -> T:
    """What a fetch of data returns; if memory runs out, once more with all caches empty.

    Sound only for what changes nothing before it fails, such as reading a weight: not for a segment.
    """
    try:
        return fetch()
    except (RuntimeError, MemoryError) as error:
        if not ran_out(error):
            raise
    gc.collect()
    _empty_caches()
    return fetch()


def _empty_caches() -> None:
    """Gives back what PyTorch's allocators hold without using it, on devices of all kinds that there are."""
    for kind in KINDS:
        module = getattr(torch, kind, None)
        empty = getattr(module, "empty_cache", None)
        if module is not None and empty is not None and module.is_available():
            empty()
