"""libgguf, where it is installed: it unpacks rows on the CPU, to the same bits and mostly faster than layouts.py."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache
from typing import Any

from torch import Tensor

from ...compiler.quantization import block_of

_SLOWER = frozenset({"Q6_K"})  # by half than the layout, on one thread
_allowed = True


@contextmanager
def only_torch() -> Iterator[None]:
    """Has everything unpacked in plain torch while it is entered, for tests and comparisons."""
    global _allowed
    before, _allowed = _allowed, False
    try:
        yield
    finally:
        _allowed = before


def native_unpack(packed: Tensor, quant: str) -> Callable[[Tensor, Tensor], None] | None:
    """What unpacks rows of a type on the tensor's device, if libgguf can and is the faster one."""
    if not _allowed or quant in _SLOWER or packed.device.type != "cpu":
        return None
    return _unpack_of(quant)


@cache
def _unpack_of(quant: str) -> Callable[[Tensor, Tensor], None] | None:
    library = _library()
    if library is None:
        return None
    kind, (elements, nbytes) = int(library.GGMLQuantizationType[quant]), block_of(quant)

    def unpack(blocks: Tensor, out: Tensor) -> None:
        count = blocks.numel() // nbytes
        library.dequantize_rows_into_raw(kind, blocks.numpy(), out.numpy(), count, elements)

    return unpack


@cache
def _library() -> Any:
    try:
        import libgguf
    except ImportError:
        return None
    return libgguf
