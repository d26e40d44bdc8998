"""The words that the demo knows."""

from __future__ import annotations

import re

from .draw import COLOURS, OPPOSITE, SHAPES

RELATIONS = (*OPPOSITE, *OPPOSITE.values())
_KNOWN = {word for entry in (*COLOURS, *SHAPES, *RELATIONS, "a", "an", "to", "the") for word in entry.split()}


def unknown_words(prompt: str) -> list[str]:
    """The words of a prompt that the demo was not trained with, each once."""
    return list(dict.fromkeys(word for word in re.findall(r"[^\W_]+", prompt.lower()) if word not in _KNOWN))


def told_of_unknown(prompt: str) -> str:
    """What to say of a prompt with words that the demo does not know; empty for one without."""
    unknown = unknown_words(prompt)
    if not unknown:
        return ""
    return (
        f"the demo does not know {', '.join(unknown)}: it paints one or two of {', '.join(SHAPES)} in "
        f"{', '.join(COLOURS)}, {', '.join(RELATIONS)} each other, such as 'a red circle above a blue square'; other "
        "models are named with --model"
    )
