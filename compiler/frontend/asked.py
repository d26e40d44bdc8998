"""What a model is answered that asks how it is run: that it is not being traced, for a program stands in for eager.

Models take other ways while they are traced (other masks, other kernels), whose results are not always eager's to the
bit. So a trace answers their code as an eager call would, and PyTorch's own code with the truth. What cannot be traced
that way is traced once more with the truth, and said so.

For a kind of device that is not here a model that asks what it can do is answered for one of recent years.
"""

from __future__ import annotations

import contextlib
import sys
import threading
from collections.abc import Callable, Iterator
from types import FrameType
from typing import Any

import torch

from .diagnostics import is_of_model

_QUESTIONS = ("is_compiling", "is_exporting")
_CAPABILITY = (8, 0)
"""Of NVIDIA's cards since 2020."""


@contextlib.contextmanager
def answered(kind: str, asked: set[str], truly: bool = False) -> Iterator[None]:
    """Has the model that this thread traces answered so meanwhile; ``asked`` gets the lines that asked.

    No other thread may trace. Where ``truly``, the model is told that it is traced.
    """
    replaced: list[tuple[Any, str, Any]] = []
    mine = threading.get_ident()

    def replace(home: Any, name: str, make: Callable[[Any], Any]) -> None:
        own = getattr(home, name, None)
        if own is not None:
            replaced.append((home, name, own))
            setattr(home, name, make(own))

    def unless_traced(own: Any) -> Any:
        def answer() -> bool:
            frame = _asking(sys._getframe(1))
            if threading.get_ident() != mine or not is_of_model(frame) or not own():
                return bool(own())
            asked.add(f"{frame.f_code.co_filename}:{frame.f_lineno}")
            return truly

        return answer

    try:
        for name in _QUESTIONS:
            replace(torch.compiler, name, unless_traced)
        if kind == "cuda" and not torch.cuda.is_available():
            replace(torch.cuda, "get_device_capability", lambda _: lambda *_, **__: _CAPABILITY)
        yield
    finally:
        for home, name, own in replaced:
            setattr(home, name, own)


def _asking(frame: FrameType) -> FrameType:
    """The frame that asks, behind PyTorch's older names of the same question."""
    while frame.f_code.co_name in _QUESTIONS and frame.f_back is not None:
        frame = frame.f_back
    return frame
