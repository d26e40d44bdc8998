"""Random numbers in a forward: a program draws by PyTorch's generators when it runs, and by no others.

A seed that a forward sets would be set by the trace alone. So a module that does runs as it is, as does one that draws
by a generator of its own, and the state of PyTorch's is what it was before the trace.
"""

from __future__ import annotations

import contextlib
import sys
import threading
from collections.abc import Iterator
from types import FrameType
from typing import Any

import torch
from torch.export import ExportedProgram

from ..errors import TraceError

_SETS = frozenset(("manual_seed", "seed", "set_state"))
_BETWEEN = frozenset(("torch.random", "contextlib", "torch._compile", "torch._dynamo.eval_frame"))
"""Where calls of such functions pass: Dynamo wraps `torch.manual_seed` where it has been at work."""


class Seeds:
    """Stands for PyTorch's generator of the host, which it asks, and notes whether a forward of this thread sets it.

    `torch.manual_seed` and its like look the generator up by its name when they are called, under whichever name they
    were imported.
    """

    def __init__(self) -> None:
        self._generator = torch.default_generator
        self._thread = threading.get_ident()
        self._before: torch.Tensor | None = None
        self._is_within = self.was_set = False

    def begin(self) -> None:
        """The forward begins."""
        self._before, self._is_within = self._generator.get_state(), True

    def end(self) -> None:
        """It has ended; a state that it has set is set back."""
        self._is_within = False
        if self.was_set and self._before is not None:
            self._generator.set_state(self._before)

    def __getattr__(self, name: str) -> Any:
        if name in _SETS and self._is_within and threading.get_ident() == self._thread:
            self.was_set = self.was_set or not _is_of_torch(sys._getframe(1))
        return getattr(self._generator, name)


def _is_of_torch(frame: FrameType | None) -> bool:
    """Whether PyTorch itself asked: its compilers keep the state over what they trace, within a forward too."""
    while frame is not None and frame.f_globals.get("__name__") in _BETWEEN:
        frame = frame.f_back
    return frame is not None and str(frame.f_globals.get("__name__")).partition(".")[0] == "torch"


@contextlib.contextmanager
def seeds_noted() -> Iterator[Seeds]:
    """Has what sets PyTorch's generator noted meanwhile, between `begin` and `end`."""
    seeds, looked_up = Seeds(), vars(torch.random)
    before = looked_up["default_generator"]
    looked_up["default_generator"] = seeds
    try:
        yield seeds
    finally:
        looked_up["default_generator"] = before
        seeds.end()


def refuse_objects(exported: ExportedProgram, name: str) -> None:
    """Raises TraceError where operations take what is no tensor and no number, such as a generator."""
    for value in exported.constants.values():
        if isinstance(value, torch.Generator):
            raise TraceError(
                f"{name} draws random numbers by a torch.Generator of its own, which no program has: draw them outside "
                "and pass them as an input, or draw without it"
            )
        if not isinstance(value, torch.Tensor):
            raise TraceError(f"{name} hands a {type(value).__name__} to operations, which no program has")
