"""What this machine has: the accelerators that PyTorch sees, and the host's memory.

The other half of `devices`: the only place that asks PyTorch for a kind of accelerator by name.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeAlias


@dataclass(frozen=True)
class Probed:
    """An accelerator that was found, with its memory in bytes."""

    kind: str
    index: int
    total: int
    free: int
    label: str
    integrated: bool


Asked: TypeAlias = "Collection[tuple[str, int]] | None"
"""The kinds and indices whose free memory is wanted; None stands for all."""


def probe_accelerators(asked: Asked = None) -> list[Probed]:
    """Every accelerator that PyTorch can use here, in PyTorch's order.

    To ask CUDA what is free makes a context on that card, which takes some hundred MiB there: it is asked only for the
    devices that are wanted, and all of the others counts as free.
    """
    import torch

    expand_segments()
    found = [*_indexed("cuda", torch.cuda, asked), *_indexed("xpu", torch.xpu, asked)]
    if torch.backends.mps.is_available():
        total = torch.mps.recommended_max_memory()
        unused = torch.mps.driver_allocated_memory() - torch.mps.current_allocated_memory()
        free = max(0, total - torch.mps.driver_allocated_memory() + max(0, unused))
        found.append(Probed("mps", 0, total, free, "Apple GPU", True))
    return found


_ALLOCATORS = ("PYTORCH_ALLOC_CONF", "PYTORCH_CUDA_ALLOC_CONF", "PYTORCH_HIP_ALLOC_CONF")


def expand_segments() -> None:
    """Has PyTorch's allocator on CUDA hold segments that grow, so that it holds little that it does not use.

    Not where somebody has set its environment variable, where it is too late since CUDA is in use, or on systems whose
    drivers cannot.
    """
    import torch

    is_set = any(name in os.environ for name in _ALLOCATORS)
    if is_set or not sys.platform.startswith("linux") or torch.cuda.is_initialized() or not torch.cuda.is_available():
        return
    os.environ["PYTORCH_CUDA_ALLOC_CONF"] = "expandable_segments:True"


def _indexed(kind: str, module: Any, asked: Asked = None) -> Iterator[Probed]:
    """The devices of torch.cuda or torch.xpu, whose interfaces agree in what is asked here."""
    for index in range(module.device_count() if module.is_available() else 0):
        properties = module.get_device_properties(index)
        total = int(properties.total_memory)
        free = _free(module, index, total) if asked is None or (kind, index) in asked else total
        integrated = bool(getattr(properties, "is_integrated", False))
        yield Probed(kind, index, total, free, properties.name, integrated)


def _free(module: Any, index: int, total: int) -> int:
    """What the driver has free, and what PyTorch's allocator holds without using it."""
    try:
        free = int(module.mem_get_info(index)[0])
        cached = int(module.memory_reserved(index)) - int(module.memory_allocated(index))
        return min(total, free + max(0, cached))
    except (RuntimeError, AttributeError, NotImplementedError):
        return total  # some drivers do not tell


def probe_host() -> tuple[int, int]:
    """The host's memory, total and available, within the limits of the container this runs in."""
    total = _system_total()
    free = min(total, _meminfo_available() or total)
    limit, used = _cgroup_limit()
    if limit is None or limit >= total:
        return total, free
    return limit, max(0, min(free, limit - used))


def _system_total() -> int:
    sysconf: Callable[[str], int] | None = getattr(os, "sysconf", None)
    if sysconf is not None:
        return sysconf("SC_PAGE_SIZE") * sysconf("SC_PHYS_PAGES")
    import psutil  # systems without sysconf; accelerate brings it

    return int(psutil.virtual_memory().total)


def _meminfo_available() -> int | None:
    path = Path("/proc/meminfo")
    lines = path.read_text().splitlines() if path.exists() else []
    return next((int(line.split()[1]) * 1024 for line in lines if line.startswith("MemAvailable:")), None)


def _cgroup_limit() -> tuple[int | None, int]:
    """The memory limit of the control group and what it uses already; None where there is no limit."""
    folder = Path("/sys/fs/cgroup")
    try:
        limit = (folder / "memory.max").read_text().strip()
        return (None, 0) if limit == "max" else (int(limit), int((folder / "memory.current").read_text()))
    except (OSError, ValueError):
        return None, 0
