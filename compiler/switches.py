"""The switches of PyTorch that a model may ask or that pick kernels, read in one place.

What holds for a setting of these goes by `read_switches`: a trace that is kept, a program of a process, and what was
found out about kernels' strides. A call of it takes about three microseconds.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from typing import Any

import torch

_SWITCHES = (
    "get_default_dtype",
    "_get_deterministic_algorithms",
    "_get_deterministic_fill_uninitialized_memory",
    "_get_flash_sdp_enabled",
    "_get_mem_efficient_sdp_enabled",
    "_get_math_sdp_enabled",
    "_get_cudnn_sdp_enabled",
    "_get_overrideable_sdp_enabled",
    "_get_fa3_sdp_enabled",
    "_get_math_sdp_allow_fp16_bf16_reduction",
    "_get_cublas_allow_fp16_reduced_precision_reduction",
    "_get_cublas_allow_bf16_reduced_precision_reduction",
    "_get_cublas_allow_fp16_accumulation",
    "_get_cpu_allow_fp16_reduced_precision_reduction",
    "_get_cudnn_enabled",
    "_get_cudnn_benchmark",
    "_get_cudnn_deterministic",
    "_get_mkldnn_enabled",
    "_get_mkldnn_deterministic",
    "_get_nnpack_enabled",
    "_get_qengine",
)
_PRECISIONS = (("generic", "all"), ("cuda", "matmul"), ("cuda", "conv"), ("mkldnn", "matmul"), ("mkldnn", "conv"))
"""Where products of float32 may be rounded to less. The older names for these raise after the newer were set."""


def _getters() -> Iterator[Callable[[], Any]]:
    home = torch._C
    yield torch.backends.mha.get_fastpath_enabled
    yield from (getattr(home, name) for name in _SWITCHES if hasattr(home, name))  # releases differ in a few
    yield from (functools.partial(home._get_fp32_precision_getter, *place) for place in _PRECISIONS)


_GETTERS = tuple(_getters())


def read_switches() -> tuple[Any, ...]:
    """What every switch is set to now, in one order."""
    return tuple([asked() for asked in _GETTERS])
