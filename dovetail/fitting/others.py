"""Plans beside the one that was taken."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Other:
    """A plan that was not taken: what is otherwise in it, and the seconds of a picture by the search."""

    what: str
    seconds: float
