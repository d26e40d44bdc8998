"""What answers a call in a dry run: zeros of the shapes, dtypes and strides that the real answer would have."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch

from ..compiler.ir.program import Program
from ..compiler.ir.sizes import evaluate
from ..compiler.ir.value import TensorType


def zeros_of(program: Program, inputs: Sequence[torch.Tensor], device: torch.device) -> Any:
    """What a program returns for inputs of a call, in the module's own structure, with nothing but zeros in it."""
    symbols = _symbols(program, inputs) if program.symbols else {}
    return program.signature.unflatten(
        [_zeros(one, symbols, device) if isinstance(one, tuple) else one for one in program.results()]
    )


def _symbols(program: Program, inputs: Sequence[torch.Tensor]) -> dict[str, int]:
    """The sizes of a call that a trace left open."""
    found: dict[str, int] = dict(program.symbols)
    for leaf, given in zip(program.signature.tensors, inputs, strict=True):
        named = ((name, size) for name, size in zip(leaf.shape, given.shape, strict=True) if isinstance(name, str))
        found.update((name, size) for name, size in named if name.isidentifier())
    return found


def _zeros(tensors: tuple[TensorType, ...], symbols: dict[str, int], device: torch.device) -> torch.Tensor:
    (kind,) = tensors
    shape = [evaluate(size, symbols) for size in kind.shape]
    stride = [evaluate(step, symbols) for step in kind.stride]
    with torch.inference_mode(False):
        return torch.empty_strided(shape, stride, dtype=kind.dtype, device=device).zero_()


@dataclass(frozen=True)
class Like:
    """What a tensor looks like, without its numbers."""

    shape: torch.Size
    stride: tuple[int, ...]
    dtype: torch.dtype
    device: torch.device


def like(value: Any) -> Any:
    """What a tensor looks like; any other value as it is."""
    if not isinstance(value, torch.Tensor):
        return value
    return Like(value.shape, value.stride(), value.dtype, value.device)


def zeros_like(value: Any) -> Any:
    """Zeros that look so; any other value as it is."""
    if not isinstance(value, Like):
        return value
    with torch.inference_mode(False):
        return torch.empty_strided(value.shape, value.stride, dtype=value.dtype, device=value.device).zero_()
