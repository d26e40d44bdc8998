"""How much of a prompt the text encoders of a pipeline read."""

from __future__ import annotations

import inspect
import math
from collections.abc import Mapping
from typing import Any

_UNLIMITED = 10**9


def told_of_cut(pipe: Any, arguments: Mapping[str, Any]) -> str:
    """What to say of a prompt that is longer than what any text encoder of a pipeline reads; empty for a shorter one.

    Args:
        pipe: the pipeline, whose tokenizers know their limits.
        arguments: those of the call: ``prompt``, and ``max_sequence_length`` where it is another one than by default.
    """
    prompt = arguments.get("prompt")
    default = inspect.signature(type(pipe).__call__).parameters.get("max_sequence_length")
    most = arguments.get("max_sequence_length", getattr(default, "default", None)) or math.inf
    limits = {name: min(one.model_max_length, most) for name, one in _tokenizers(pipe).items()}
    if not isinstance(prompt, str) or not limits:
        return ""
    name = max(limits, key=lambda name: limits[name])
    if limits[name] >= _UNLIMITED:
        return ""
    count = len(getattr(pipe, name)(prompt).input_ids)
    return f"the prompt has {count} tokens, of which the first {limits[name]} are read" if count > limits[name] else ""


def _tokenizers(pipe: Any) -> dict[str, Any]:
    return {name: one for name, one in pipe.components.items() if hasattr(one, "model_max_length") and callable(one)}
