"""What the demo can paint: the words that it knows, and its size."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from . import CALL_DEFAULTS
from .draw import COLOURS, OPPOSITE, SHAPES

SIDE = int(CALL_DEFAULTS["height"])
"""The height and width of the pictures that it was trained with."""
RELATIONS = (*OPPOSITE, *OPPOSITE.values())
_FEW = 8
_KNOWN = {word for entry in (*COLOURS, *SHAPES, *RELATIONS, "a", "an", "to", "the") for word in entry.split()}


def unknown_words(prompt: str) -> list[str]:
    """The words of a prompt that the demo was not trained with, each once."""
    return list(dict.fromkeys(word for word in re.findall(r"[^\W_]+", prompt.lower()) if word not in _KNOWN))


def told_of_unknown(prompt: str) -> str:
    """What to say of a prompt with words that the demo does not know; empty for one without."""
    unknown = unknown_words(prompt)
    if not unknown:
        return ""
    more = f" and {len(unknown) - _FEW} more" if len(unknown) > _FEW else ""
    few = ", ".join(word[:40] for word in unknown[:_FEW])
    return (
        f"the demo does not know {few}{more}: it paints one or two of {', '.join(SHAPES)} in "
        f"{', '.join(COLOURS)}, {', '.join(RELATIONS)} each other, such as 'a red circle above a blue square'; other "
        "models are named with --model"
    )


def told_of_size(width: int | None, height: int | None) -> str:
    """What to say of a size that the demo was not trained with; empty for its own, and where none is asked for."""
    asked = width or SIDE, height or SIDE
    if asked == (SIDE, SIDE):
        return ""
    return (
        f"the demo was trained with pictures of {SIDE} x {SIDE} and paints no other size well: "
        f"{asked[0]} x {asked[1]} shows that it runs, and little else"
    )


def told_of_demo(arguments: Mapping[str, Any]) -> tuple[str, str]:
    """What to say of a call of the demo that it cannot paint well; texts that are empty say nothing."""
    words = told_of_unknown(str(arguments.get("prompt")))
    return words, told_of_size(arguments.get("width"), arguments.get("height"))
