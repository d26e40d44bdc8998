"""What PyTorch finds as `torch.sim`: the functions that every device module has, as `torch.cuda` has them."""

from __future__ import annotations

import torch

from .copies import empty_pinned, host_view, is_pinned
from .ledger import capacity, device_count, device_of, recent_peak, reset_peak, stats, uncounted
from .streams import DeviceLike, Event, Stream, current_stream, default_stream, set_stream, stream, synchronize
from .tensor import rewrap

__all__ = [
    "Event", "Stream", "current_device", "current_stream", "default_stream", "device_count", "empty_cache",
    "empty_pinned", "get_amp_supported_dtype", "get_device_name", "get_rng_state", "host_view", "is_available",
    "is_initialized", "is_pinned", "manual_seed", "manual_seed_all", "max_memory_allocated", "max_memory_reserved",
    "mem_get_info", "memory_allocated", "memory_reserved", "recent_peak", "reset_peak_memory_stats", "rewrap",
    "set_rng_state", "set_stream", "stream", "synchronize", "uncounted",
]  # fmt: skip


def is_available() -> bool:
    """Says that there are simulated devices, since this module is only there once they are switched on."""
    return True


def is_initialized() -> bool:
    """Says that nothing is left to initialize."""
    return True


def _is_in_bad_fork() -> bool:
    return False


def current_device() -> int:
    """Returns the index that `sim` without an index stands for."""
    return 0


def get_device_name(device: DeviceLike = None) -> str:
    """Returns the device's name."""
    return f"simulated device {device_of(device).index}"


def mem_get_info(device: DeviceLike = None) -> tuple[int, int]:
    """Returns the free and the total bytes of a device."""
    total = capacity(device)
    return total - stats(device).in_use, total


def memory_allocated(device: DeviceLike = None) -> int:
    """Returns the bytes in use on a device."""
    return stats(device).in_use


def max_memory_allocated(device: DeviceLike = None) -> int:
    """Returns the peak of a device in bytes."""
    return stats(device).peak


def memory_reserved(device: DeviceLike = None) -> int:
    """Returns the bytes in use on a device: nothing is held for later use."""
    return memory_allocated(device)


def max_memory_reserved(device: DeviceLike = None) -> int:
    """Returns the peak of a device in bytes: nothing is held for later use."""
    return max_memory_allocated(device)


def reset_peak_memory_stats(device: DeviceLike = None) -> None:
    """Starts the peak of a device again from what is in use now."""
    reset_peak(device)


def empty_cache() -> None:
    """Does nothing: simulated devices keep no cache."""


def manual_seed(seed: int) -> None:
    """Does nothing: simulated devices draw from the CPU's generator, which `torch.manual_seed` has seeded."""


def manual_seed_all(seed: int) -> None:
    """Does nothing, see `manual_seed`."""


def get_rng_state(device: DeviceLike = None) -> torch.Tensor:
    """Returns the state of the CPU's generator, from which simulated devices draw."""
    return torch.get_rng_state()


def set_rng_state(state: torch.Tensor, device: DeviceLike = None) -> None:
    """Sets the state of the CPU's generator, from which simulated devices draw."""
    torch.set_rng_state(state)


def get_amp_supported_dtype() -> list[torch.dtype]:
    """Returns the types that autocast may cast to."""
    return [torch.bfloat16, torch.float16]
