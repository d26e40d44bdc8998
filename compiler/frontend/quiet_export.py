"""Keeps torch.export from writing to the screen about a trace that fails: the error that follows says what was wrong.

It prints the graph that it has so far, once for each of its own attempts, and logs what it cannot advise. A pipeline
that is compiled by its parts would show pages of it. Of PyTorch's insides this needs two names of modules; a release
without them writes what it writes by itself.
"""

from __future__ import annotations

import contextlib
import logging
import sys
from collections.abc import Iterator
from typing import Any

_EXPORTING = "torch.export._trace"
_ADVISER = "torch.fx.experimental.symbolic_shapes"


@contextlib.contextmanager
def quietly_exported() -> Iterator[None]:
    """For one export, while no other thread exports and after everything was imported that it takes."""
    exporting = vars(sys.modules[_EXPORTING]) if _EXPORTING in sys.modules else {}
    adviser = logging.getLogger(_ADVISER)
    adviser.addFilter(_is_an_error)
    exporting["print"] = _print_nothing
    try:
        yield
    finally:
        del exporting["print"]
        adviser.removeFilter(_is_an_error)


def _is_an_error(record: logging.LogRecord) -> bool:
    return record.levelno >= logging.ERROR


def _print_nothing(*_: Any, **__: Any) -> None:
    """In the place of ``print`` there."""
