"""Tensors of other libraries' classes that hold several others, as quantized weights do: they are moved by these.

PyTorch's protocol for such classes (``__tensor_flatten__``) says what is inside, and makes another of other tensors.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from ...compiler.frontend.refusals import foreign_library


def is_wrapped(tensor: torch.Tensor) -> bool:
    """Whether a tensor is of a class of another library that holds other tensors."""
    return hasattr(tensor, "__tensor_flatten__") and bool(foreign_library(tensor))


def rewrapped(tensor: Any, change: Callable[[torch.Tensor], torch.Tensor]) -> torch.Tensor:
    """A tensor of the same class, of what a function makes of each tensor inside."""
    names, context = tensor.__tensor_flatten__()
    inner = {name: change(getattr(tensor, name)) for name in names}
    made: torch.Tensor = type(tensor).__tensor_unflatten__(inner, context, tensor.shape, tensor.stride())
    return made


def bytes_of(tensor: Any) -> int:
    """The bytes that a tensor takes, which are those of the tensors inside where it holds others."""
    if not is_wrapped(tensor):
        return int(tensor.nbytes if tensor.layout is torch.strided else tensor.numel() * tensor.element_size())
    return sum(bytes_of(getattr(tensor, name)) for name in tensor.__tensor_flatten__()[0])
