"""In how many micro-batches the pictures of a call go through the devices of a component (`--micro-batches`)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial

from ..errors import SpecError
from .counts import MOST, Counts, read_count
from .items import Given, read_items, spec_text
from .roles import read_key

_EXPECTED = f"off, or in how many parts the pictures of a call are computed: 2 to {MOST}"
_read = partial(read_count, parts="micro-batches", expected=_EXPECTED)


@dataclass(frozen=True)
class MicroBatchCounts(Counts):
    """In how many micro-batches each component is computed."""


def parse_micro_batches(given: Given, components: Mapping[str, str] | None = None) -> MicroBatchCounts:
    """The micro-batches of a text such as `2` or `diffusion=4,te=off`, of a number, or of a dict.

    Raises:
        SpecError: points at the wrong place and says what was expected.

    >>> parse_micro_batches("off,diffusion=4").count_for("transformer", "diffusion")
    4
    """
    if isinstance(given, bool):
        raise SpecError(f"micro_batches is {given!r}: give {_EXPECTED}")
    return MicroBatchCounts(*read_items(spec_text(given), partial(read_key, components=components or {}), _read))
