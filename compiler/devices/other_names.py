"""Names of devices that other programs have, and what they are here."""

from __future__ import annotations

import re
from collections.abc import Mapping

KINDS_ELSEWHERE: Mapping[str, str] = {
    "rocm": "cuda", "hip": "cuda", "sycl": "xpu", "metal": "mps", "mtl": "mps",
}  # fmt: skip
"""The kinds of devices as stable-diffusion.cpp and ggml name them, and as PyTorch does."""

_WITHOUT = {"vulkan": "Vulkan", "opencl": "OpenCL", "directml": "DirectML", "cann": "CANN", "musa": "MUSA"}
_CARDS = "cuda0 for a card of NVIDIA or AMD, xpu0 for one of Intel, mps for that of a Mac"
_DEVICE_MAPS = {
    "sequential": "the devices in the order in which they are to be filled, such as cuda0&cuda1; or auto",
    "balancedlow0": "balanced, with less for the first card: --tensor-split 1,2 or --max-vram cuda0=6GiB; or auto",
}


_MEMORY = ("ram", "mem", "memory", "dram", "sysmem", "systemmemory", "hostmemory", "host")


def told_of(name: str) -> tuple[str, str] | None:
    """What is wrong with a name that another program or accelerate has, and what may stand there; None for others.

    >>> told_of("Vulkan0")[0], told_of("sequential")[0], told_of("cuda0")
    ("PyTorch has no device 'Vulkan0', for it does not use Vulkan", "'sequential' is a device map of accelerate", None)
    """
    plain = re.sub("[-_ ]", "", name.lower())
    if plain in _DEVICE_MAPS:
        return f"{name!r} is a device map of accelerate", _DEVICE_MAPS[plain]
    if plain in _MEMORY:
        return f"{name!r} is not the name of a device: host memory is called cpu", "cpu"
    kind = _WITHOUT.get(re.sub(r":?[0-9]+$", "", plain))
    return (f"PyTorch has no device {name!r}, for it does not use {kind}", _CARDS) if kind else None
