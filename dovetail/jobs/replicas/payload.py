"""Pictures, latents and errors as what goes over a wire: facts and bytes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from ...compiler.errors import (
    AdapterError,
    CallError,
    DoesNotFitError,
    DovetailError,
    NotHereError,
    UsageError,
    WeightError,
)

if TYPE_CHECKING:
    import torch
    from PIL import Image


class RanOutError(DovetailError, MemoryError):
    """Memory that ran out in another process."""


_KINDS: Mapping[str, type[DovetailError]] = {
    one.__name__: one
    for one in (
        UsageError, DoesNotFitError, NotHereError, CallError, WeightError, AdapterError, RanOutError, DovetailError
    )
}  # fmt: skip


def packed_pictures(pictures: Sequence[Image.Image]) -> tuple[list[list[Any]], list[bytes]]:
    """Of each picture its mode and size, and its pixels."""
    return [[one.mode, *one.size] for one in pictures], [one.tobytes() for one in pictures]


def unpacked_pictures(facts: Sequence[Sequence[Any]], data: bytes) -> list[Image.Image]:
    """The pictures of what `packed_pictures` gave, whose pixels come one after another."""
    from PIL import Image

    found: list[Image.Image] = []
    start = 0
    for mode, width, height in facts:
        nbytes = len(Image.new(mode, (1, 1)).tobytes()) * width * height
        found.append(Image.frombytes(mode, (width, height), data[start : start + nbytes]))
        start += nbytes
    return found


def packed_latents(latents: torch.Tensor | None) -> tuple[list[int], list[bytes]]:
    """The shape of latents, and their numbers as float32."""
    if latents is None:
        return [], []
    numbers = latents.detach().float().cpu().contiguous()
    return list(numbers.shape), [numbers.numpy().tobytes()]


def unpacked_latents(shape: Sequence[int], data: bytes) -> torch.Tensor | None:
    """The latents of what `packed_latents` gave."""
    if not shape:
        return None
    import torch

    return torch.frombuffer(bytearray(data), dtype=torch.float32).reshape(list(shape))


def told_of(error: BaseException) -> dict[str, str]:
    """An error as text: of which class of ours it is, what it says, and which field of a request is wrong."""
    names = [cls.__name__ for cls in type(error).__mro__]
    kind = next((name for name in names if name in _KINDS), "")
    if kind:
        return {"kind": kind, "error": str(error), "field": error.field if isinstance(error, UsageError) else ""}
    from ...recovery.recovery import is_out_of_memory  # which needs PyTorch

    text = str(error).strip() or "no message"
    if is_out_of_memory(error):
        return {"kind": RanOutError.__name__, "error": f"out of memory: {text}"}
    return {"kind": DovetailError.__name__, "error": f"{names[0]}: {text}"}


def error_of(said: Mapping[str, str]) -> DovetailError:
    """The error of what `told_of` gave."""
    error = _KINDS.get(said.get("kind", ""), DovetailError)(said.get("error", "no message"))
    if isinstance(error, UsageError):
        error.field = said.get("field", "")
    return error
