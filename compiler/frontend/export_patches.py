"""Keeps torch.export from work whose results are not read, and from writing about a failing trace to the screen.

For every node it looks up the source line of each frame of the stack, though it keeps the frames inside the model only,
and for every graph in between it generates Python code, though none of them runs: a fifth of an export. Both are left
until somebody asks, which changes no result.

Of a trace that fails it prints the graph that it has so far, once for each of its own attempts, and logs what it cannot
advise; the error that follows says what was wrong. A pipeline that is compiled by its parts would show pages of it.

So it does with each operation that takes no such tensors, a page of its own frames each.

Where a model calls a function that PyTorch compiles within an export (`flex_attention`), Dynamo keeps that function and
the modes of the export, which hold the model: a process would keep each such model that was ever traced.

While it runs, an export has the whole process compute without oneDNN, NNPACK and cuDNN.

A hook of an export that sees what is assigned to buffers stays behind in PyTorch 2.11 wherever the export fails.

Of PyTorch's insides this needs nine names; a release without them exports, writes and keeps as it does by itself.
"""

from __future__ import annotations

import contextlib
import importlib
import logging
import sys
import threading
import traceback
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import torch
import torch.utils._traceback as stacks
from torch.fx import _lazy_graph_module as graph_modules

_EXPORTING = "torch.export._trace"
_ADVISER = "torch.fx.experimental.symbolic_shapes"
_FAKES = "torch._subclasses.fake_tensor"
_SWITCHED_OFF = "_ignore_backend_decomps"
_SYMBOLIZE = "_extract_symbolized_tb"
_BACKENDS = "torch._dynamo.backends.debugging"
_BUFFER_HOOKS = "torch._functorch._aot_autograd.utils"
_WITH_MODES = "make_eager_backend_with_torch_function_modes"


@contextlib.contextmanager
def lazily_exported() -> Iterator[None]:
    """For one export, while no other thread exports; stacks that other threads record meanwhile say the same."""
    eager = getattr(stacks, _SYMBOLIZE, None)
    lazily = getattr(graph_modules, "_use_lazy_graph_module", lambda _: contextlib.nullcontext())
    if eager is None:
        yield
        return
    setattr(stacks, _SYMBOLIZE, _frames)
    try:
        with lazily(True):
            yield
    finally:
        setattr(stacks, _SYMBOLIZE, eager)


def _frames(symbolized: Sequence[dict[str, Any]], skip: int) -> traceback.StackSummary:
    """The frames of a stack, outermost first, whose source lines are read when they are printed."""
    found = traceback.StackSummary()
    for frame in reversed(symbolized[skip:]):
        found.append(traceback.FrameSummary(frame["filename"], frame["line"], frame["name"], lookup_line=False))
    return found


@contextlib.contextmanager
def quietly_exported() -> Iterator[None]:
    """For one export, while no other thread exports and after everything was imported that it takes."""
    exporting = vars(sys.modules[_EXPORTING]) if _EXPORTING in sys.modules else {}
    adviser = logging.getLogger(_ADVISER)
    fakes = logging.getLogger(_FAKES)
    adviser.addFilter(_is_an_error)
    fakes.addFilter(_is_no_failed_operation)
    exporting["print"] = _print_nothing
    try:
        yield
    finally:
        del exporting["print"]
        adviser.removeFilter(_is_an_error)
        fakes.removeFilter(_is_no_failed_operation)


@contextlib.contextmanager
def modes_let_go() -> Iterator[None]:
    """For one export, while no other thread exports: takes its modes out of what Dynamo keeps of it, at its end."""
    backends: Any = importlib.import_module(_BACKENDS)
    original, thread = getattr(backends, _WITH_MODES, None), threading.get_ident()
    if original is None:
        yield
        return
    kept: list[list[Any]] = []

    def made(modes: Iterable[Any]) -> Any:
        held = list(modes)
        if threading.get_ident() == thread:
            kept.append(held)
        return original(held)

    setattr(backends, _WITH_MODES, made)
    try:
        yield
    finally:
        setattr(backends, _WITH_MODES, original)
        for held in kept:
            held.clear()


@contextlib.contextmanager
def backends_left() -> Iterator[None]:
    """For one export, while no other thread exports: leaves oneDNN, NNPACK and cuDNN as they are.

    An export switches them off for the whole process, for what it would decompose by them; here it decomposes nothing.
    Threads that compute meanwhile would take other kernels, and get other bits.
    """
    exporting: Any = importlib.import_module(_EXPORTING)
    original = getattr(exporting, _SWITCHED_OFF, None)
    if original is None:
        yield
        return
    setattr(exporting, _SWITCHED_OFF, contextlib.nullcontext)
    try:
        yield
    finally:
        setattr(exporting, _SWITCHED_OFF, original)


@contextlib.contextmanager
def buffer_hooks_let_go() -> Iterator[None]:
    """For one export, while no other thread exports: takes out what it leaves among the hooks of all new buffers.

    PyTorch 2.11 leaves one wherever an export fails, so that what a forward reaches would differ at each call.
    """
    hooks = getattr(torch.nn.modules.module, "_global_buffer_registration_hooks", {})
    before = set(hooks)
    try:
        yield
    finally:
        for number, hook in list(hooks.items()):
            if number not in before and getattr(hook, "__module__", None) == _BUFFER_HOOKS:
                hooks.pop(number, None)


def _is_an_error(record: logging.LogRecord) -> bool:
    return record.levelno >= logging.ERROR


def _is_no_failed_operation(record: logging.LogRecord) -> bool:
    return not str(record.msg).startswith("failed while attempting to run meta")


def _print_nothing(*_: Any, **__: Any) -> None:
    """In the place of ``print`` there."""
