"""What a model is answered that asks whether gradients, or inference mode, are enabled: what is so of the call.

A trace has gradients off, whatever the call has. So the model's code is answered as in the call, and PyTorch's own with
the truth; from where the model sets the mode itself, by whichever of PyTorch's contexts, both are one. Which answer it
got is noted, for a call in another mode is another call. Where the answer cannot matter it is not: nearly every model
of diffusers asks ``torch.is_grad_enabled() and self.gradient_checkpointing``.

A question may have been imported by its name: so it is replaced in the globals of all Python modules, and among the
attributes of the model's parts. What is imported during a trace keeps what stands there then, for good.
"""

from __future__ import annotations

import contextlib
import dis
import functools
import sys
import threading
from collections.abc import Callable, Iterator
from types import FrameType
from typing import Any

import torch
from torch import nn

from .diagnostics import is_of_model, is_of_models_file

_SILENT = frozenset(("PRECALL", "CACHE", "NOP", "TO_BOOL", "EXTENDED_ARG", "NOT_TAKEN"))
_LOADS = ("LOAD_FAST", "LOAD_DEREF", "LOAD_ATTR")
_GRADIENTS, _INFERENCE = "grad_mode", "inference_mode"
_SETTING = (torch.no_grad, torch.enable_grad, torch.inference_mode, torch.set_grad_enabled)
_CONTEXTS = ("torch.autograd.grad_mode", "torch.utils._contextlib")
"""Where PyTorch has these, and the functions that it puts around one that is decorated with them."""


@contextlib.contextmanager
def modes_answered(module: nn.Module, noted: set[str]) -> Iterator[None]:
    """Has a module that this thread traces answered so meanwhile; ``noted`` gets the questions with their answers.

    No other thread may trace. It is entered in the modes of the call.
    """
    global _now
    answers = _Answers(noted)
    with contextlib.ExitStack() as stack:
        for kind in _SETTING:
            for name in ("__init__", "__call__") if kind is torch.set_grad_enabled else ():
                stack.enter_context(_replaced(kind, name, answers.noting(kind, name)))
            for name in ("__enter__", "__exit__"):
                stack.enter_context(_replaced(kind, name, answers.noting(kind, name)))
        for own, asked in _ASKED.values():
            stack.enter_context(_replaced(torch, own.__name__, asked))
        for held, name in _held_elsewhere(module):
            stack.enter_context(_put(held, name, _ASKED[id(held[name])][1]))
        _now = answers
        try:
            yield
        finally:
            _now = None


class _Answers:
    """What the thread that traces is answered, and whether its model has set the mode for gradients itself."""

    def __init__(self, noted: set[str]) -> None:
        self._noted = noted
        self._thread = threading.get_ident()
        self._of_call = {question: own() for question, own in _OWN.items()}
        self._traced = {**self._of_call, _GRADIENTS: False}
        self._is_set = False
        self._before: dict[int, bool] = {}  # by context, as it was when that was made or entered

    def answer(self, question: str, now: bool, frame: FrameType) -> bool:
        """What a frame is answered that asks, with ``now`` being the truth."""
        if threading.get_ident() != self._thread or not is_of_model(frame):
            return now
        if now != self._traced[question] or (question == _GRADIENTS and self._is_set):
            return now
        is_on = self._of_call[question]
        if not _is_of_no_effect(frame):
            self._noted.add(question if is_on else f"no_{question}")
        return is_on

    def noting(self, kind: type, name: str) -> Callable[..., Any]:
        """A method of a context of PyTorch's, which notes that the model sets the mode, or gives it back."""
        own = vars(kind)[name]
        begins, ends = name in ("__init__", "__enter__"), name in ("__exit__", "__call__")
        keeps = name == "__init__" or (begins and kind is not torch.set_grad_enabled)

        def noted(context: Any, *args: Any, **named: Any) -> Any:
            if threading.get_ident() == self._thread and _is_models(sys._getframe(1)):
                if keeps:
                    self._before[id(context)] = self._is_set
                self._is_set = self._before.get(id(context), True) if ends else True
            return own(context, *args, **named)

        return noted


def _is_models(frame: FrameType | None) -> bool:
    """Whether the model sets a mode, itself or as a decorator of a function of its own."""
    while frame is not None and frame.f_globals.get("__name__") in _CONTEXTS:
        function = frame.f_locals.get("func")
        if function is not None:
            return is_of_models_file(str(getattr(function, "__module__", "")))
        frame = frame.f_back
    return is_of_model(frame)


def _asking(question: str, own: Callable[[], bool]) -> Callable[[], bool]:
    @functools.wraps(own)
    def asked() -> bool:
        answers = _now
        return own() if answers is None else answers.answer(question, own(), sys._getframe(1))

    return asked


_OWN = {_GRADIENTS: torch.is_grad_enabled, _INFERENCE: torch.is_inference_mode_enabled}
_ASKED = {id(own): (own, _asking(question, own)) for question, own in _OWN.items()}
_now: _Answers | None = None
_looked: dict[str, tuple[int, int, bool]] = {}
"""By Python module: which globals it had, and how many, when they were looked through; whether one is a question."""


def _held_elsewhere(module: nn.Module) -> list[tuple[dict[str, Any], str]]:
    """The questions among the globals of all Python modules and among the attributes of a model's parts.

    Globals are looked through once, and again where there are others; those of the model's classes each time.
    """
    homes = {cls.__module__ for child in module.modules() for cls in type(child).__mro__}
    held: list[dict[str, Any]] = [vars(child) for child in module.modules() if _questions_in(vars(child))]
    for name, library in list(sys.modules.items()):
        own = getattr(library, "__dict__", {})
        known = _looked.get(name)
        if known is None or known[:2] != (id(own), len(own)) or name in homes:
            is_pytorchs = name.partition(".")[0] == "torch"
            known = _looked[name] = id(own), len(own), bool(not is_pytorchs and _questions_in(own))
        if known[2]:
            held.append(own)
    once = {id(one): one for one in held}  # some have two names
    return [(one, name) for one in once.values() for name in _questions_in(one)]


def _questions_in(held: dict[str, Any]) -> list[str]:
    if _ASKED.keys().isdisjoint(map(id, list(held.values()))):
        return []
    return [name for name, value in list(held.items()) if id(value) in _ASKED]


@contextlib.contextmanager
def _replaced(home: Any, name: str, function: Any) -> Iterator[None]:
    own = vars(home)[name]
    setattr(home, name, function)
    try:
        yield
    finally:
        setattr(home, name, own)


@contextlib.contextmanager
def _put(held: dict[str, Any], name: str, function: Any) -> Iterator[None]:
    own, held[name] = held[name], function
    try:
        yield
    finally:
        if held.get(name) is function:
            held[name] = own


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
    return all(map(_is_jump_of_condition, (one, other))) and one.argval == other.argval


def _is_jump_of_condition(one: dis.Instruction) -> bool:
    """Whether it jumps where something is false and keeps no value, as it would where that is what is wanted."""
    return one.opname.startswith("POP_JUMP") and one.opname.endswith("IF_FALSE")
