"""Moves weights of somebody else's module into pinned memory, within the objects that the module holds.

Only memory that nobody else sees is moved: who keeps a view of it, its storage or a graph that has read it would go on
with the old numbers. Whether somebody does is asked of PyTorch's counts of references, and the numbers are copied and
the memory exchanged, in one run of C, in which Python switches to no other thread and collects no garbage. A method
that another thread has called on the weight itself (`w.exp()`) is not counted, and works without Python's lock: so
nothing moves while there is a thread that may. Of a weight that does not move, nothing changes.
"""

from __future__ import annotations

import ctypes
import gc
import logging
import sys
import threading
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from functools import cache, partial
from typing import Any

import torch
from torch import nn

from ...compiler.printable import on_one_line
from ...compiler.units import format_bytes
from ..devices.accelerator import Accelerator
from .origin import HOST
from .stored_weight import ORDINARY

logger = logging.getLogger(__name__)

_TELLING = 2**20
"""Bytes; fewer are copied in no time."""
_OWN = "dovetail-"
"""What the names of our threads begin with that work on no weight of a module while none of its calls runs."""

_call: Callable[[Any], Any] = partial.__call__
_copy_bytes = ctypes.PYFUNCTYPE(ctypes.c_void_p, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_size_t)(
    ctypes.cast(ctypes.memmove, ctypes.c_void_p).value or 0
)
"""`ctypes.memmove`, which lets other threads run meanwhile, as a function that lets none."""


def pin_in_place(tensors: Iterable[torch.Tensor], there: Accelerator) -> tuple[list[torch.Tensor], bool]:
    """Moves tensors to memory from which copies to a device need not stage; they stay the objects that they are.

    Returns those that lie elsewhere still, for somebody else sees their memory, another thread may work on them
    (`threads_beside`), or there is no room; and whether any was moved. What is empty has no memory to move.
    """
    left, has_moved = [], False
    with torch.inference_mode(False), torch.no_grad():  # what is made within that mode is never trained
        for tensor in tensors:
            if not tensor.nbytes or (tensor.device == HOST and there.is_pinned(tensor)):
                continue
            if _moves(tensor, there):
                has_moved = True
            else:
                left.append(tensor)
    return left, has_moved


def threads_beside() -> list[str]:
    """The names of other threads that may work on a module: all that Python knows, but our own and tqdm's monitor."""
    tqdm = sys.modules.get("tqdm")
    monitor = getattr(tqdm, "TMonitor", ())
    here = threading.current_thread()
    others = [one for one in threading.enumerate() if one is not here and not isinstance(one, monitor)]
    return [one.name for one in others if not one.name.startswith(_OWN)]


def tell_of(left: Sequence[torch.Tensor], owner: str, beside: Sequence[str] = ()) -> bool:
    """Says of tensors that lie elsewhere what that costs, and the ways out; returns whether there was that to say.

    Args:
        left: those that did not move.
        owner: whose they are.
        beside: the other threads for which they did not move.
    """
    nbytes = sum(one.nbytes for one in {id(one): one for one in left}.values())
    if nbytes < _TELLING:
        return False
    why, ways = _reason(beside) if beside else (_SEEN, _LETTING_GO)
    logger.warning(
        "%d weights of %s (%s) rest in memory that is not pinned: %s: each call copies them to the device several "
        "times as slowly: %s, or name their files (weights=…)",
        len(left), owner, format_bytes(nbytes), why, ways,
    )  # fmt: skip
    return True


_SEEN = "something else sees it, a file or NumPy has it, or no more can be pinned"
_LETTING_GO = (
    "let go of what holds them (a state_dict(), views, gradients) and call unload(), give each memory of its own "
    "(p.data = p.data.clone())"
)


def _reason(beside: Sequence[str]) -> tuple[str, str]:
    """Why nothing moves while there are other threads, and the ways out."""
    names = ", ".join(map(on_one_line, beside[:3])) + ", …" * (len(beside) > 3)
    ways = (
        "load the program in the main thread, before others are started (compiled.load()), pin them before compiling "
        "(p.data = p.data.pin_memory())"
    )
    return f"other threads ({names}) may work on them", ways


def _moves(tensor: torch.Tensor, there: Accelerator) -> bool:
    """Moves a tensor if nobody else sees its memory; says whether it was moved."""
    if threads_beside() or not _may_move(tensor):
        return False
    questions, alone = _questions(tensor), _alone(tensor.requires_grad)
    if _asked(questions) != alone or (memory := there.empty_pinned_like(tensor)) is None:
        return False
    wants = tensor.requires_grad
    other = nn.Parameter(memory, wants) if isinstance(tensor, nn.Parameter) else memory.requires_grad_(wants)
    steps = (
        partial(_check_alone),
        partial(next, map({alone: None}.__getitem__, map(tuple, [map(_call, questions)]))),
        partial(_copy_bytes, other.data_ptr(), tensor.data_ptr(), tensor.nbytes),
        partial(torch._C._swap_tensor_impl, tensor, other),
    )
    collects = gc.isenabled()
    try:
        gc.disable()  # callbacks of collections and finalizers are Python, which may look at the weight
        deque(map(_call, steps), maxlen=0)
    except (KeyError, RuntimeError):  # somebody sees it since, or has a weak reference to what is in it
        return False
    finally:
        if collects:
            gc.enable()
    return True


def _check_alone() -> None:
    """Raises RuntimeError while another thread may work on a weight."""
    if threads_beside():
        raise RuntimeError("another thread may work on it")


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
