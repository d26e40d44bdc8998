"""What a model is answered that asks how it is run: that it is not being traced, for a program stands in for eager.

Models take other ways while they are traced (other masks, other kernels), whose results are not always eager's to the
bit. So a trace answers their code as an eager call would, and PyTorch's own code with the truth. What cannot be traced
that way is traced once more with the truth, and said so: first of its tensors, which have no values, for many a model
looks at those of a mask unless they are fake, and then of the trace.

For a kind of device that is not here a model that asks what it can do is answered for one of recent years.
"""

from __future__ import annotations

import contextlib
import sys
import threading
from collections.abc import Callable, Collection, Iterator, Mapping
from types import FrameType, ModuleType
from typing import Any

import torch

from .diagnostics import is_of_model

FAKES, TRACES = "of tensors without values", "of the trace"
"""What the truth may be told of, in the order in which it is."""
_QUESTIONS = ("is_compiling", "is_exporting")
_CAPABILITY = (8, 0)
"""Of NVIDIA's cards since 2020."""


@contextlib.contextmanager
def answered(kind: str, asked: Mapping[str, set[str]], told: Collection[str] = ()) -> Iterator[None]:
    """Has the model that this thread traces answered so meanwhile; ``asked`` gets the lines that asked, by question.

    No other thread may trace. The model is told the truth of what is among ``told``, and so is everybody afterwards, as
    a file that was imported meanwhile, and keeps what answers now.
    """
    is_over = False
    replaced: list[tuple[Any, str, Any]] = []
    mine = threading.get_ident()

    def replace(home: Any, name: str, make: Callable[[Any], Any]) -> None:
        own = getattr(home, name, None)
        if own is not None:
            replaced.append((home, name, own))
            setattr(home, name, make(own))

    def is_lied_to(question: str) -> bool:
        frame = _asking(sys._getframe(2))
        if is_over or threading.get_ident() != mine or not is_of_model(frame):
            return False
        asked[question].add(f"{frame.f_code.co_filename}:{frame.f_lineno}")
        return question not in told

    def unless_traced(own: Any) -> Any:
        return lambda: bool(own()) and not is_lied_to(TRACES)

    def of_recent_years(own: Any) -> Any:
        return lambda *args, **named: own(*args, **named) if is_over else _CAPABILITY

    def without_fakes(own: type[ModuleType]) -> type[ModuleType]:
        def find(module: ModuleType) -> type:
            return _NoTensor if is_lied_to(FAKES) else vars(module)["FakeTensor"]

        return type(own.__name__, (own,), {"FakeTensor": property(find)})

    try:
        for name in _QUESTIONS:
            replace(torch.compiler, name, unless_traced)
        for module in (torch._subclasses, torch._subclasses.fake_tensor):
            replace(module, "__class__", without_fakes)
        if kind == "cuda" and not torch.cuda.is_available():
            replace(torch.cuda, "get_device_capability", of_recent_years)
        yield
    finally:
        is_over = True
        for home, name, own in replaced:
            setattr(home, name, own)


class _NoTensor:
    """A class of which no tensor is."""


def _asking(frame: FrameType) -> FrameType:
    """The frame that asks, behind functions that only hand the question on."""
    while frame.f_code.co_name.startswith("is_") and frame.f_back is not None:
        frame = frame.f_back
    return frame
