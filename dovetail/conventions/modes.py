"""Modes that somebody has put around a call: each operation of it goes through them, as eager's own would.

A program computes what its trace did, and would know nothing of a mode, or keep what one did then. So a call within
such modes runs as it is; what dovetail does around it is none of their business, and goes on without them. Modes of
PyTorch's own, as of a default device, are no such modes.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator
from typing import Any

import torch
from torch import overrides
from torch.utils import _python_dispatch as dispatches

_KNOWN = ("torch", __name__.partition(".")[0])
_local = threading.local()


class Watching(dispatches.TorchDispatchMode):
    """A mode that looks at operations, and changes none: a program may run within it."""


def has_foreign_modes() -> bool:
    """Whether modes of somebody else act on the operations of this thread now; takes a fraction of a microsecond."""
    if not torch._C._len_torch_function_stack() and not torch._C._len_torch_dispatch_stack():
        return False
    return any(map(_is_foreign, (*_functions(), *_dispatches())))


def foreign_modes() -> str:
    """The classes of these modes, for a message."""
    found = (type(mode).__qualname__ for mode in (*_functions(), *_dispatches()) if _is_foreign(mode))
    return ", ".join(dict.fromkeys(found))


def are_taken_off() -> bool:
    """Whether such modes are taken off in this thread."""
    return bool(getattr(_local, "modes", None))


@contextlib.contextmanager
def taken_off() -> Iterator[None]:
    """Takes all modes off meanwhile where one is of somebody else."""
    if not has_foreign_modes():
        yield
        return
    modes, before = (_functions(), _dispatches()), getattr(_local, "modes", None)
    _pull(modes)
    _local.modes = modes
    try:
        yield
    finally:
        _local.modes = before
        _push(modes)


@contextlib.contextmanager
def all_off() -> Iterator[None]:
    """Takes all modes of this thread off meanwhile, whoever's they are."""
    found = _functions(), _dispatches()
    _pull(found)
    try:
        yield
    finally:
        _push(found)


@contextlib.contextmanager
def put_back() -> Iterator[None]:
    """Puts the modes that are taken off back meanwhile."""
    modes = getattr(_local, "modes", None)
    if modes is None:
        yield
        return
    _local.modes = None
    _push(modes)
    try:
        yield
    finally:
        _pull(modes)
        _local.modes = modes


def _is_foreign(mode: Any) -> bool:
    return type(mode).__module__.partition(".")[0] not in _KNOWN and not isinstance(mode, Watching)


def _functions() -> list[Any]:
    return list(overrides._get_current_function_mode_stack())


def _dispatches() -> list[Any]:
    return list(dispatches._get_current_dispatch_mode_stack())


def _push(modes: tuple[list[Any], list[Any]]) -> None:
    functions, others = modes
    for mode in functions:
        overrides._push_mode(mode)
    for mode in others:
        dispatches._push_mode(mode)


def _pull(modes: tuple[list[Any], list[Any]]) -> None:
    functions, others = modes
    for _ in others:
        dispatches._pop_mode()
    for _ in functions:
        overrides._pop_mode()
