"""In how many chunks wide parts are computed, as it was asked for."""

from __future__ import annotations

from typing import Any

from ..compiler.errors import SpecError

_OFF = (None, "", "off", 1, "1")
_MOST = 64


def parse_chunks(asked: Any) -> int:
    """The number of chunks: 1 for ``"off"`` or nothing, else ``4`` or ``"4"``; raises SpecError for anything else.

    >>> parse_chunks("off"), parse_chunks("4")
    (1, 4)
    """
    if isinstance(asked, bool) or (asked not in _OFF and not str(asked).isdecimal()):
        raise SpecError(f"chunk is {asked!r}: give off, or how many chunks wide parts are computed in, such as 4")
    chunks = 1 if asked in _OFF else int(asked)
    if not 1 <= chunks <= _MOST:
        raise SpecError(f"chunk is {chunks}: wide parts can be computed in 1 to {_MOST} chunks")
    return chunks
