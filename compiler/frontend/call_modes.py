"""What a model is answered that asks whether gradients, or inference mode, are enabled: what is so of the call.

A trace has gradients off, whatever the call has. So the model's code is answered as in the call, and PyTorch's own with
the truth; within ``torch.no_grad()`` and the like of the model itself both are one. Which answer it got is noted, for a
call in another mode is another call. Where the answer cannot matter it is not: nearly every model of diffusers asks
``torch.is_grad_enabled() and self.gradient_checkpointing``.
"""

from __future__ import annotations

import contextlib
import dis
import sys
import threading
from collections.abc import Callable, Iterator
from types import FrameType
from typing import Any

import torch

from .diagnostics import is_of_model

_SILENT = frozenset(("PRECALL", "CACHE", "NOP", "TO_BOOL", "EXTENDED_ARG", "NOT_TAKEN"))
_LOADS = ("LOAD_FAST", "LOAD_DEREF", "LOAD_ATTR")
_WRAPPER = "decorate_context"
"""The function that PyTorch puts around one that is decorated with ``torch.no_grad()``."""


@contextlib.contextmanager
def modes_answered(noted: set[str]) -> Iterator[None]:
    """Has the model that this thread traces answered so meanwhile; ``noted`` gets the questions with their answers.

    No other thread may trace. It is entered in the modes of the call.
    """
    mine, within = threading.get_ident(), [0]

    def answering(question: str, own: Callable[[], bool], traced: bool, is_left: Callable[[], bool]) -> Any:
        is_on = own()

        def asked() -> bool:
            frame, now = sys._getframe(1), own()
            if now != traced or threading.get_ident() != mine or not is_of_model(frame) or is_left():
                return now  # the model has set it itself, or it is another who asks
            if not _is_of_no_effect(frame):
                noted.add(question if is_on else f"no_{question}")
            return is_on

        return asked

    def counting(own: Callable[..., Any], step: int) -> Callable[..., Any]:
        def entered(self: Any, *args: Any) -> Any:
            if threading.get_ident() == mine and is_of_model(_entering(sys._getframe(1))):
                within[0] += step
            return own(self, *args)

        return entered

    with contextlib.ExitStack() as stack:
        for kind in (torch.no_grad, torch.inference_mode):
            for name, step in (("__enter__", 1), ("__exit__", -1)):
                stack.enter_context(_replaced(kind, name, counting(getattr(kind, name), step)))
        gradients = answering("grad_mode", torch.is_grad_enabled, False, lambda: within[0] > 0)
        is_inference = torch.is_inference_mode_enabled
        inference = answering("inference_mode", is_inference, is_inference(), lambda: False)
        stack.enter_context(_replaced(torch, "is_grad_enabled", gradients))
        stack.enter_context(_replaced(torch, "is_inference_mode_enabled", inference))
        yield


@contextlib.contextmanager
def _replaced(home: Any, name: str, function: Any) -> Iterator[None]:
    own = vars(home)[name]
    setattr(home, name, function)
    try:
        yield
    finally:
        setattr(home, name, own)


def _entering(frame: FrameType) -> FrameType | None:
    """The frame that enters a mode, also where that is a function which is decorated with it."""
    return frame.f_back if frame.f_code.co_name == _WRAPPER else frame


def _is_of_no_effect(frame: FrameType) -> bool:
    """Whether something false follows the question by ``and``, so that the answer decides nothing."""
    code = dis.get_instructions(frame.f_code)
    rest = [one for one in code if one.offset > frame.f_lasti and one.opname not in _SILENT]
    jump, loads = rest.pop(0), list[dis.Instruction]()
    while rest and rest[0].opname.startswith(_LOADS):
        loads.append(rest.pop(0))
    if not loads or not rest or not _is_same_jump(jump, rest[0]):
        return False
    value = frame.f_locals.get(str(loads[0].argval))
    for one in loads[1:]:
        value = getattr(value, str(one.argval), None)
    return isinstance(value, (bool, int, type(None))) and not value


def _is_same_jump(one: dis.Instruction, other: dis.Instruction) -> bool:
    return "IF_FALSE" in one.opname and "IF_FALSE" in other.opname and one.argval == other.argval
