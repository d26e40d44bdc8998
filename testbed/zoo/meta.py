"""What a full-size component is: ``FULL_SIZE[name]`` builds its module on meta, and has a call for it.

Parameters are bf16 as they are published; nothing is downloaded and nothing large is allocated.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import accelerate
import torch
from torch import nn

from .tiny import Call


def meta(*shape: int, dtype: torch.dtype = torch.bfloat16) -> torch.Tensor:
    """A tensor that has a shape and no data."""
    return torch.empty(shape, dtype=dtype, device="meta")


@dataclass(frozen=True)
class FullSize:
    """A component as it is published, and a call of the size it is used with."""

    build: Callable[[], nn.Module]
    call: Call

    def make(self) -> tuple[nn.Module, Call]:
        """The module with bf16 parameters on meta, and its call; buffers that no checkpoint has keep their values."""
        with accelerate.init_empty_weights():
            module = self.build().eval()
        for child in module.modules():
            for name, weight in child._parameters.items():
                if weight is not None and weight.is_floating_point():
                    child._parameters[name] = nn.Parameter(weight.to(torch.bfloat16))
        return module, self.call


FULL_SIZE: dict[str, FullSize] = {}


def add(name: str, build: Callable[[], nn.Module], **call: Any) -> None:
    FULL_SIZE[name] = FullSize(build, call)
