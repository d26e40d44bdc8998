"""What an adapter adds to a weight, in the order and the dtypes in which peft computes it."""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from torch.nn import functional

from ..compiler.ir.part import Part
from ..runtime.devices.accelerator import accelerator_of
from ..runtime.devices.transfers import moved
from ..runtime.store.origin import HOST

_CONVOLVE = {3: functional.conv1d, 4: functional.conv2d, 5: functional.conv3d}


@dataclass(frozen=True)
class Update:
    """A product of two matrices, or a vector, times its scale.

    ``dtype`` is that to which it is rounded before it is added, if it is; ``is_taken_out`` tells that it is subtracted.
    """

    up: torch.Tensor
    down: torch.Tensor | None
    scale: float
    dtype: torch.dtype | None = None
    is_taken_out: bool = False

    def part(self, part: Part | None) -> torch.Tensor:
        """A part of the update, on the host.

        It is cut from the product of the whole matrices: with fewer rows a matmul may round otherwise.
        """
        return self.on(HOST) if part is None else part.of(self.on(HOST))

    def on(self, device: torch.device) -> torch.Tensor:
        """All of the update, computed on a device; where the host computes, half precision in single."""
        up = moved(self.up.detach(), device)
        if self.down is None:
            return self._rounded(up * self.scale)
        down, dtype = moved(self.down.detach(), device), up.dtype
        if dtype in (torch.float16, torch.bfloat16) and _is_of_the_host(up):
            up, down = up.float(), down.float()
        return self._rounded((_product(up, down) * self.scale).to(dtype))

    def _rounded(self, update: torch.Tensor) -> torch.Tensor:
        update = update if self.dtype is None else update.to(self.dtype)
        return -update if self.is_taken_out else update

    def kept(self) -> Update:
        """The same with matrices of its own, for those of an adapter may be written later."""
        down = None if self.down is None else _own(self.down)
        return replace(self, up=_own(self.up), down=down)

    def taken_out(self, dtype: torch.dtype) -> Update:
        """What takes it out of a weight of a dtype."""
        return replace(self, dtype=dtype, is_taken_out=True)


def _own(tensor: torch.Tensor) -> torch.Tensor:
    """A copy in host memory."""
    return moved(tensor.detach(), HOST).clone()


def _is_of_the_host(tensor: torch.Tensor) -> bool:
    """Whether the host's kernels compute with a tensor, as they do on simulated devices."""
    return accelerator_of(tensor.device).has_host_kernels


def _product(up: torch.Tensor, down: torch.Tensor) -> torch.Tensor:
    if up.ndim == 2:
        return up @ down
    if down.shape[2:].numel() == 1:
        return (up.flatten(1) @ down.flatten(1)).reshape(*up.shape[:1], *down.shape[1:])
    return _CONVOLVE[up.ndim](down.transpose(0, 1), up).transpose(0, 1)
