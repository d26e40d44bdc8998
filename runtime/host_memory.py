"""What the host's memory is told and asked: how much there is, and that a large piece of it will be filled."""

from __future__ import annotations

import ctypes
import functools
import mmap
import os
from collections.abc import Callable
from typing import Any

import torch

_LARGE_PAGE = 2 * 2**20


def host_memory() -> int:
    """Returns the bytes of memory that the host has, or 16 GiB where the system does not say."""
    try:
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (AttributeError, ValueError):
        return 16 * 2**30


def prefer_large_pages(tensor: torch.Tensor) -> None:
    """Has the system back fresh memory of the host with large pages, of which filling it meets 512 times fewer."""
    start = -(-tensor.data_ptr() // _LARGE_PAGE) * _LARGE_PAGE
    end = (tensor.data_ptr() + tensor.nbytes) // _LARGE_PAGE * _LARGE_PAGE
    advise = _madvise()
    if advise is not None and start < end:
        advise(ctypes.c_void_p(start), ctypes.c_size_t(end - start), mmap.MADV_HUGEPAGE)


@functools.cache
def _madvise() -> Callable[..., Any] | None:
    return ctypes.CDLL(None).madvise if hasattr(mmap, "MADV_HUGEPAGE") else None
