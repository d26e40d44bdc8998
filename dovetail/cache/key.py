"""The key of a trace on disk: equal keys mean that tracing would yield the same program."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from typing import Any

from torch import nn

from ..conventions.hooks import has_foreign_hooks
from .content import Content
from .surroundings import foreign_methods, is_within_modes, surroundings
from .values import HasNoContent

logger = logging.getLogger(__name__)


def key_of(
    module: nn.Module,
    args: Sequence[Any],
    kwargs: Mapping[str, Any],
    dynamic_shapes: Mapping[str, Any] | None,
    kind: str,
) -> str | None:
    """The key of a trace with these arguments; None where something that it depends on cannot be told by content."""
    if has_foreign_hooks() or is_within_modes():
        return None
    content = Content()
    try:
        content.say(*surroundings(kind))
        content.module(module)
        content.arguments((list(args), dict(kwargs)))
        content.arguments(dynamic_shapes)
        for name, method in foreign_methods():
            content.say("method of tensors", name)
            content.arguments(method)
        return content.finish()
    except (HasNoContent, RecursionError) as why:
        logger.debug("the trace of a %s is not kept on disk: it depends on %s", type(module).__name__, why)
        return None
