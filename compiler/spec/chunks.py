"""In how many chunks the wide parts of a component are computed (`--chunk`)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial

from ..errors import SpecError
from ..spans import Span
from .items import ByComponent, Given, read_items, spec_text
from .roles import read_key

WHOLE = 1
"""The number of chunks of what is not taken apart."""

_OFF = "off"
_MOST = 64
_EXPECTED = f"off, or in how many chunks wide parts are computed: 2 to {_MOST}"


@dataclass(frozen=True)
class Chunks(ByComponent[int]):
    """In how many chunks each component is computed."""

    def chunks_for(self, attribute: str, role: str) -> int:
        """The number of chunks, which is 1 where nothing was said."""
        return self.get(attribute, role) or WHOLE

    def _value_text(self, value: int) -> str:
        return _OFF if value == WHOLE else str(value)


def parse_chunks(given: Given, components: Mapping[str, str] | None = None) -> Chunks:
    """The chunks of a text such as `4` or `diffusion=4,te=off`, of a number, or of a dict.

    Raises:
        SpecError: points at the wrong place and says what was expected.

    >>> parse_chunks("off,te=4").chunks_for("text_encoder", "te")
    4
    """
    if isinstance(given, bool):
        raise SpecError(f"chunk is {given!r}: give {_EXPECTED}")
    return Chunks(*read_items(spec_text(given), partial(read_key, components=components or {}), _read_chunks))


def _read_chunks(span: Span) -> int:
    text = span.value.lower()
    if text == _OFF:
        return WHOLE
    if not text.isdecimal() or not text.isascii() or len(text) > 9 or not WHOLE <= int(text) <= _MOST:
        raise span.error(f"{span.value!r} is no number of chunks", _EXPECTED, (_OFF,))
    return int(text)
