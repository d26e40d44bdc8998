"""In how many chunks the wide parts of a component are computed (`--chunk`)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial

from ..errors import SpecError
from .counts import MOST, Counts, read_count
from .items import Given, read_items, spec_text
from .roles import read_key

_EXPECTED = f"off, or in how many chunks wide parts are computed: 2 to {MOST}"
_read = partial(read_count, parts="chunks", expected=_EXPECTED)


@dataclass(frozen=True)
class Chunks(Counts):
    """In how many chunks each component is computed."""


def parse_chunks(given: Given, components: Mapping[str, str] | None = None) -> Chunks:
    """The chunks of a text such as `4` or `diffusion=4,te=off`, of a number, or of a dict.

    Raises:
        SpecError: points at the wrong place and says what was expected.

    >>> parse_chunks("off,te=4").count_for("text_encoder", "te")
    4
    """
    if isinstance(given, bool):
        raise SpecError(f"chunk is {given!r}: give {_EXPECTED}")
    return Chunks(*read_items(spec_text(given), partial(read_key, components=components or {}), _read))
