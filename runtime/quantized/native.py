"""libgguf, where it is installed: it unpacks rows on the CPU, to the same bits as layouts.py.

It is asked for one long row, which it unpacks on the calling thread, up to three times as fast as PyTorch does there.
Asked for many it starts threads of its own at each call, which then contend with PyTorch's: a transformer's step took a
quarter longer. So with more threads than a few the work is PyTorch's, which divides it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache
from typing import Any

import torch
from torch import Tensor

_FEW = 2  # threads
_SLOWER = frozenset({"Q5_1", "Q6_K", "IQ4_NL"})  # than the layout, with one thread or two
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


def may_leave_torch() -> bool:
    """Whether something else than plain torch may unpack now."""
    return _allowed


def native_unpack(packed: Tensor, quant: str) -> Callable[[Tensor, Tensor], None] | None:
    """What unpacks rows of a type on the tensor's device, if libgguf can and is the faster one."""
    if not _allowed or quant in _SLOWER or packed.device.type != "cpu" or torch.get_num_threads() > _FEW:
        return None
    return _unpack_of(quant)


@cache
def _unpack_of(quant: str) -> Callable[[Tensor, Tensor], None] | None:
    library = _library()
    if library is None:
        return None
    kind = int(library.GGMLQuantizationType[quant])

    def unpack(blocks: Tensor, out: Tensor) -> None:
        library.dequantize_rows_into_raw(kind, blocks.view(-1).numpy(), out.view(-1).numpy(), 1, out.numel())

    return unpack


@cache
def _library() -> Any:
    try:
        import libgguf
    except ImportError:
        return None
    return libgguf
