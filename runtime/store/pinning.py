"""Moves weights of somebody else's module into pinned memory, within the objects that the module holds.

Only memory that nobody else sees is moved: who keeps a view of it, its storage or a graph that has read it would go on
with the old numbers. Whether somebody does is asked of PyTorch's counts of references, and the numbers are copied and
the memory exchanged, in one run of C, in which Python switches to no other thread. A kernel that another thread runs on
the weight meanwhile counts as somebody. Of a weight that does not move, nothing changes.
"""

from __future__ import annotations

import ctypes
import logging
import sys
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from functools import cache, partial
from typing import Any

import torch
from torch import nn

from ...compiler.units import format_bytes
from ..devices.accelerator import Accelerator
from .origin import HOST
from .stored_weight import ORDINARY

logger = logging.getLogger(__name__)

_TELLING = 2**20
"""Bytes; fewer are copied in no time."""

_call: Callable[[Any], Any] = partial.__call__
_copy_bytes = ctypes.PYFUNCTYPE(ctypes.c_void_p, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_size_t)(
    ctypes.cast(ctypes.memmove, ctypes.c_void_p).value or 0
)
"""`ctypes.memmove`, which lets other threads run meanwhile, as a function that lets none."""


def pin_in_place(tensors: Iterable[torch.Tensor], there: Accelerator) -> tuple[list[torch.Tensor], bool]:
    """Moves tensors to memory from which copies to a device need not stage; they stay the objects that they are.

    Returns those that lie elsewhere still, for somebody else sees their memory, or there is no room; and whether any
    was moved.
    """
    left, has_moved = [], False
    with torch.inference_mode(False), torch.no_grad():  # what is made within that mode is never trained
        for tensor in tensors:
            if tensor.device == HOST and there.is_pinned(tensor):
                continue
            if _moves(tensor, there):
                has_moved = True
            else:
                left.append(tensor)
    return left, has_moved


def tell_of(left: Sequence[torch.Tensor], owner: str) -> bool:
    """Says of tensors that lie elsewhere what that costs, and the ways out; returns whether there was that to say."""
    nbytes = sum(one.nbytes for one in {id(one): one for one in left}.values())
    if nbytes < _TELLING:
        return False
    logger.warning(
        "%d weights of %s (%s) rest in memory that is not pinned: something else sees it, a file or NumPy has it, or "
        "no more can be pinned: each call copies them to the device several times as slowly: let go of what holds them "
        "(a state_dict(), views, gradients) and call unload(), give each memory of its own (p.data = p.data.clone()), "
        "or name their files (weights=…)",
        len(left), owner, format_bytes(nbytes),
    )  # fmt: skip
    return True


def _moves(tensor: torch.Tensor, there: Accelerator) -> bool:
    """Moves a tensor if nobody else sees its memory; says whether it was moved."""
    if not _may_move(tensor):
        return False
    questions, alone = _questions(tensor), _alone(tensor.requires_grad)
    if _asked(questions) != alone or (memory := there.empty_pinned_like(tensor)) is None:
        return False
    other = nn.Parameter(memory, tensor.requires_grad) if isinstance(tensor, nn.Parameter) else memory
    steps = (
        partial(next, map({alone: None}.__getitem__, map(tuple, [map(_call, questions)]))),
        partial(_copy_bytes, other.data_ptr(), tensor.data_ptr(), tensor.nbytes),
        partial(torch._C._swap_tensor_impl, tensor, other),
    )
    try:
        deque(map(_call, steps), maxlen=0)
    except (KeyError, RuntimeError):  # somebody sees it since, or has a weak reference to what is in it
        return False
    return True


def _may_move(tensor: torch.Tensor) -> bool:
    """Whether a tensor is of a kind that can be exchanged, in memory of PyTorch's that no other process has."""
    if type(tensor) not in ORDINARY or tensor.device != HOST or tensor.layout != torch.strided:
        return False
    if tensor.is_inference() or not tensor.is_leaf or tensor.is_conj() or tensor.is_neg() or not _HAS_TURNS:
        return False
    storage = tensor.untyped_storage()
    return storage.resizable() and not storage.is_shared()


def _questions(tensor: torch.Tensor) -> Sequence[Callable[[], Any]]:
    """What is asked of a tensor to learn whether somebody else sees it: counts of references, and what hangs on it."""
    storage = tensor.untyped_storage()
    return (
        partial(tensor._use_count),  # type: ignore[attr-defined]
        partial(torch._C._storage_Use_Count, storage._cdata),
        partial(sys.getrefcount, storage),
        partial(storage.resizable),  # not where NumPy has had it
        partial(getattr, tensor, "requires_grad"),
        partial(getattr, tensor, "grad"),
        partial(getattr, tensor, "_backward_hooks"),
        partial(getattr, tensor, "_post_accumulate_grad_hooks"),
    )


def _asked(questions: Sequence[Callable[[], Any]]) -> tuple[Any, ...]:
    return tuple(map(_call, questions))


@cache
def _alone(requires_grad: bool) -> tuple[Any, ...]:
    """The answers for a tensor that nobody else sees, as this PyTorch counts."""
    return _asked(_questions(nn.Parameter(torch.empty(1, device=HOST), requires_grad)))


_HAS_TURNS: bool = getattr(sys, "_is_gil_enabled", lambda: True)()
"""Whether threads of Python take turns, so that what runs in C alone is done at once."""
