"""In how many micro-batches the pictures of a call go through the devices of a component (`--micro-batches`)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial

from ..errors import SpecError
from ..spans import Span
from .items import ByComponent, Given, read_items, spec_text
from .roles import read_key

_WHOLE = 1
_OFF = "off"
_MOST = 64
_EXPECTED = f"off, or in how many parts the pictures of a call are computed: 2 to {_MOST}"


@dataclass(frozen=True)
class MicroBatchCounts(ByComponent[int]):
    """In how many micro-batches each component is computed."""

    def count_for(self, attribute: str, role: str) -> int:
        """The number of micro-batches, which is 1 where nothing was said."""
        return self.get(attribute, role) or _WHOLE

    def _value_text(self, value: int) -> str:
        return _OFF if value == _WHOLE else str(value)


def parse_micro_batches(given: Given, components: Mapping[str, str] | None = None) -> MicroBatchCounts:
    """The micro-batches of a text such as `2` or `diffusion=4,te=off`, of a number, or of a dict.

    Raises:
        SpecError: points at the wrong place and says what was expected.

    >>> parse_micro_batches("off,diffusion=4").count_for("transformer", "diffusion")
    4
    """
    if isinstance(given, bool):
        raise SpecError(f"micro_batches is {given!r}: give {_EXPECTED}")
    return MicroBatchCounts(*read_items(spec_text(given), partial(read_key, components=components or {}), _read_count))


def _read_count(span: Span) -> int:
    text = span.value.lower()
    if text == _OFF:
        return _WHOLE
    if not text.isdecimal() or not text.isascii() or len(text) > 9 or not _WHOLE <= int(text) <= _MOST:
        raise span.error(f"{span.value!r} is no number of micro-batches", _EXPECTED, (_OFF,))
    return int(text)
