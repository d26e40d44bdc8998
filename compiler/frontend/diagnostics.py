"""What is said of a module that cannot be traced: its name, the line of its source, and what to do."""

from __future__ import annotations

import linecache
import os
import re
import sys
import traceback
from pathlib import Path
from types import FrameType

import torch

_FRAME = re.compile(r'File "([^"]+)", line (\d+), in')
_PACKAGE = Path(str(sys.modules[__name__.partition(".")[0]].__file__)).parent
_BESIDE = [Path(__file__).parents[2] / name for name in ("compiler", "passes", "runtime")]
_OWN = (*(f"{folder}{os.sep}" for folder in (Path(torch.__file__).parent, _PACKAGE, *_BESIDE)), "<")
_OF_VALUES = ("DataDependent", "data-dependent", "depends on the values", "numpy", "_local_scalar_dense", "item()")
_LIBRARIES = ("torch", __name__.rpartition(".")[0])
OR_A_PART = ", or compile a submodule that leaves it out"
"""What is left to who compiles a module; the parts of a pipeline's component are compiled without being asked."""


def cannot_trace(name: str, where: str, why: str) -> str:
    """One line for a module that cannot be traced; the advice is for those that look at values where it does so."""
    looks = any(word in why for word in _OF_VALUES)
    first = "make this line independent of tensor values" if looks else "see what fails there"
    return f"{name} cannot be traced{f' past {where}' if where else ''}: {why}: {first}{OR_A_PART}"


def line_of_error(error: BaseException) -> str:
    """The innermost line of a failure that belongs to neither torch nor dovetail, with its text."""
    frames = traceback.extract_tb(error.__traceback__)
    own = [frame for frame in frames if not frame.filename.startswith(_OWN)]
    own = own or [frame for frame in frames if "torch/nn/modules" in frame.filename]
    return f"{own[-1].filename}:{own[-1].lineno} ({own[-1].line})" if own else ""


def line_of_stack(stack: str) -> str:
    """The innermost line of a node's stack trace that is not torch's own, with its text."""
    frame = innermost(stack)
    return f"{frame[0]}:{frame[1]} ({linecache.getline(frame[0], int(frame[1])).strip()})" if frame else ""


def innermost(stack: str) -> tuple[str, str] | None:
    """File and line number of the innermost frame of a stack trace that is not torch's own."""
    frames: list[tuple[str, str]] = _FRAME.findall(stack)
    own = [frame for frame in frames if "/torch/" not in frame[0]] or frames
    return own[-1] if own else None


def is_of_model(frame: FrameType | None) -> bool:
    """Whether a frame runs code of neither torch nor the compiler."""
    return is_of_models_file(frame.f_globals.get("__name__", "") if frame else _LIBRARIES[0])


def is_of_models_file(name: str) -> bool:
    """Whether a Python module of this name is of neither."""
    return not any(name == library or name.startswith(f"{library}.") for library in _LIBRARIES)
