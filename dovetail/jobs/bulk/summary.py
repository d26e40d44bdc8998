"""What is said at the end of a list of prompts: how many pictures there are, how quick it was, and what failed."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ...compiler.durations import duration
from .board import pictures_an_hour
from .result import Result

_SHOWN = 20
"""So many of the lines that failed are told one by one."""


@dataclass(frozen=True)
class Summary:
    """What became of a list.

    Args:
        results: of the lines that were to be painted.
        before: how many pictures were there before.
        seconds: from the moment at which the first picture could be begun.
        replicas: what those are called that painted, if there are any.
        record: the file that says what is done.
    """

    results: Sequence[Result]
    before: int
    seconds: float
    replicas: Sequence[str]
    record: Path

    @property
    def failed(self) -> list[Result]:
        """The lines of which there is no picture, in order."""
        return sorted((one for one in self.results if one.error), key=lambda one: one.line.number)

    @property
    def painted(self) -> int:
        """How many lines were painted now."""
        return len(self.results) - len(self.failed)

    def lines(self) -> Iterator[str]:
        """For people: one line, and one for each line of the list that failed."""
        over = f" over {len(self.replicas)} replica{'s' * (len(self.replicas) > 1)}" if self.replicas else ""
        rate = f": {pictures_an_hour(self.painted, self.seconds):.0f} an hour"
        before = f", {self.before} already there" if self.before else ""
        pictures = f"{self.painted} picture{'s' * (self.painted > 1)} in {duration(self.seconds)}{over}{rate}"
        yield f"{pictures if self.painted else 'no picture was painted'}{before}"
        if not self.failed:
            return
        yield f"{len(self.failed)} failed, and the same command tries them again:"
        for one in self.failed[:_SHOWN]:
            yield f"  line {one.line.number}: {' '.join(one.error.split())}"
        if len(self.failed) > _SHOWN:
            yield f"  and {len(self.failed) - _SHOWN} more, which {self.record} has"

    def document(self) -> dict[str, Any]:
        """The same as data."""
        return {
            "painted": self.painted,
            "before": self.before,
            "failed": [{"line": one.line.number, "error": one.error} for one in self.failed],
            "files": [str(file) for one in self._in_order for file in one.files],
            "seconds": round(self.seconds, 3),
            "pictures_an_hour": round(pictures_an_hour(self.painted, self.seconds), 1),
            "replicas": list(self.replicas),
            "record": str(self.record),
        }

    @property
    def _in_order(self) -> list[Result]:
        return sorted(self.results, key=lambda one: one.line.number)
