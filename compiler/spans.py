"""A piece of a text that knows where it stands, so that an error can point at it."""

from __future__ import annotations

import difflib
from collections.abc import Iterable
from dataclasses import dataclass

from .errors import SpecError


@dataclass(frozen=True)
class Span:
    """The characters of `text` from `start` to `end`."""

    text: str
    start: int
    end: int

    @classmethod
    def whole(cls, text: str) -> Span:
        """The text without the blanks around it."""
        return cls(text, 0, len(text)).strip()

    @property
    def value(self) -> str:
        """The characters themselves."""
        return self.text[self.start : self.end]

    def strip(self) -> Span:
        """The same piece without the blanks around it."""
        start = self.end - len(self.value.lstrip())
        return Span(self.text, start, start + len(self.value.strip()))

    def split(self, separators: str) -> list[Span]:
        """The pieces between any of the separating characters, without blanks."""
        marks = [at for at in range(self.start, self.end) if self.text[at] in separators]
        starts = [self.start, *(at + 1 for at in marks)]
        return [Span(self.text, a, b).strip() for a, b in zip(starts, [*marks, self.end], strict=True)]

    def partition(self, separator: str) -> tuple[Span, Span | None]:
        """What stands before the first separator, and what stands after it if there is one."""
        at = self.text.find(separator, self.start, self.end)
        if at < 0:
            return self, None
        return Span(self.text, self.start, at).strip(), Span(self.text, at + 1, self.end).strip()

    def error(self, problem: str, expected: str = "", choices: Iterable[str] = ()) -> SpecError:
        """An error that points here and offers the choice that resembles these characters most, if it is another."""
        others = {choice.lower(): choice for choice in choices if choice != self.value}
        near = difflib.get_close_matches(self.value.lower(), list(others), n=1)
        return SpecError(problem, self.text, self.start, self.end, expected, others[near[0]] if near else None)
