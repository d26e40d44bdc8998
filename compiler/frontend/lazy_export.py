"""Keeps torch.export from work whose results are not read; without it an export takes about a fifth longer.

For every node it looks up the source line of each frame of the stack, though it keeps the frames inside the model only,
and for every graph in between it generates Python code, though none of them runs. Both are left until somebody asks,
which changes no result. Of PyTorch's insides this needs two names; a release without them exports as it does by itself.
"""

from __future__ import annotations

import contextlib
import traceback
from collections.abc import Iterator, Sequence
from typing import Any

import torch.utils._traceback as stacks
from torch.fx import _lazy_graph_module as graph_modules

_SYMBOLIZE = "_extract_symbolized_tb"


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
