"""In how many parts something of each component is computed: a number from 2 on, or `off`."""

from __future__ import annotations

from dataclasses import dataclass

from ..spans import Span
from .items import ByComponent

WHOLE = 1
"""The number of parts of what is not taken apart."""

MOST = 64
"""The most parts that may be asked for."""

_OFF = "off"


@dataclass(frozen=True)
class Counts(ByComponent[int]):
    """In how many parts each component is computed."""

    def count_for(self, attribute: str, role: str) -> int:
        """The number of parts, which is 1 where nothing was said."""
        return self.get(attribute, role) or WHOLE

    def _value_text(self, value: int) -> str:
        return _OFF if value == WHOLE else str(value)


def read_count(span: Span, parts: str, expected: str) -> int:
    """The number that a piece of text says; raises SpecError where it says none, with what was ``expected``."""
    text = span.value.lower()
    if text == _OFF:
        return WHOLE
    if not text.isdecimal() or not text.isascii() or len(text) > 9 or not WHOLE <= int(text) <= MOST:
        raise span.error(f"{span.value!r} is no number of {parts}", expected, (_OFF,))
    return int(text)
