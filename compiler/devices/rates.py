"""What a rig says that cards compute a second: `cuda0+cuda1@92/104TFLOPS`, in products and convolutions, and attention.

It stands in the place of what the table of cards has of a card's half precision, as for one that is held at less power.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from ..spans import Span
from ..units import NUMBER, number_text

_RATES = re.compile(rf"({NUMBER})(?:\s*/\s*({NUMBER}))?\s*TFLOP(?:S|/s)", re.IGNORECASE)
_LEAST, _MOST = 1e-3, 1e5
_LONGEST = 60


@dataclass(frozen=True)
class Rates:
    """Tera operations a second that a card reaches in half precision: in products and convolutions, in attention."""

    products: float
    attention: float

    def __str__(self) -> str:
        both = dict.fromkeys(map(number_text, (self.products, self.attention)))
        return f"{'/'.join(both)}TFLOPS"


def rates_in(text: Span) -> Rates | None:
    """The rates of a text such as `92/104TFLOPS`, or `92TFLOPS` for both; None for what is none.

    Raises SpecError for what no card reaches.
    """
    match = _RATES.fullmatch(text.value) if len(text.value) < _LONGEST else None
    if match is None:
        return None
    found = Rates(float(match[1]), float(match[2] or match[1]))
    if not all(_LEAST <= one <= _MOST for one in (found.products, found.attention)):
        raise text.error(f"no card computes {text.value}", "what it reaches, such as 92/104TFLOPS")
    return found
