"""What is said of a call that fails: the node and source line, and the way out where memory ran out."""

from __future__ import annotations

import contextlib
import traceback
from collections.abc import Iterable, Iterator
from typing import Any

from ..compiler.errors import DoesNotFitError, DovetailError, ExecutionError
from ..compiler.ir.program import Program, origin_of
from .devices.out_of_memory import came_late, ran_out
from .listing import Listing


def explain(error: Exception, program: Program, listings: Iterable[Listing]) -> Exception:
    """The error with the node and source line at which it came up; ``listings`` are what was run."""
    if isinstance(error, DovetailError):
        return error
    lines = {listing.filename: listing.lines for listing in listings}
    for frame in reversed(traceback.extract_tb(error.__traceback__)):
        node = lines.get(frame.filename, {}).get(frame.lineno or 0)
        if node is not None:
            origin = origin_of(node)
            where = f"%{node.name} ({node.target}) in {origin.module or program.name}, {origin.source}"
            return _told(where, error)
    return _told(f"{program.name} failed between segments", error)


def let_go(values: list[Any], error: BaseException) -> None:
    """Drops the values of a call that failed, and those that the frames of its traceback hold."""
    values.clear()
    traceback.clear_frames(error.__traceback__)


@contextlib.contextmanager
def exhaustion_told(what: str) -> Iterator[None]:
    """Raises DoesNotFitError, which says what needed memory, where that ran out meanwhile; it keeps no tensor alive.

    What another error says stays as it is.
    """
    try:
        yield
    except Exception as error:
        if isinstance(error, DovetailError) or not ran_out(error):
            raise
        traceback.clear_frames(error.__traceback__)
        raise _told(what, error) from error


def _told(where: str, error: Exception) -> DovetailError:
    """The error at a place, with a way out where memory ran out, and a doubt about the place where devices lag."""
    told = f"{where}: {type(error).__name__}: {error}"
    if ran_out(error):
        return DoesNotFitError(
            f"{told}: ask for a smaller size or batch, list more devices, or keep more free (--max-vram, "
            "DOVETAIL_RESERVE)"
        )
    if came_late(error):
        told += ": devices report such errors late, an operation before this one may be to blame"
        told += ": CUDA_LAUNCH_BLOCKING=1 shows which" * ("CUDA" in str(error))
    return ExecutionError(told)
