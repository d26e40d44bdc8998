"""The key of a trace on disk: equal keys mean that tracing would yield the same program."""

from __future__ import annotations

import hashlib
import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from ..compiler.ir.asked import one_tensor
from ..conventions.hooks import has_foreign_hooks
from .content import Content
from .patched import TENSORS, patched
from .surroundings import call_settings, is_within_modes, surroundings
from .values import HasNoContent

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class Key:
    """What tells a trace from others.

    ``content`` is of the model, its code, the call and the version of PyTorch: it is the same on other machines, and is
    what a plan goes by, which somebody names. ``full`` has all else beside, and is what the cache goes by.
    """

    content: str
    full: str


def key_of(
    module: nn.Module,
    args: Sequence[Any],
    kwargs: Mapping[str, Any],
    dynamic_shapes: Mapping[str, Any] | None,
    kind: str,
) -> Key | None:
    """The key of a trace with these arguments; None where something that it depends on cannot be told by content."""
    if has_foreign_hooks() or is_within_modes():
        return None
    content = Content()
    try:
        content.say(torch.__version__.partition("+")[0], *call_settings(kind))
        content.module(module)
        content.arguments((list(args), dict(kwargs)))
        content.say("one tensor", *one_tensor((*args, *kwargs.values())))
        content.arguments(dynamic_shapes)
        for kind, name, method in patched(TENSORS):  # those of modules are among the code that is followed
            content.say("method of", kind, name)
            content.arguments(method)
        told = content.finish()
    except HasNoContent as why:
        logger.info("the trace of a %s is not kept on disk: it depends on %s", type(module).__name__, str(why))
        return None
    except Exception as error:  # whatever lies in somebody's attributes and globals must not end a compilation
        logger.debug(
            "the trace of a %s is not kept on disk: %s while it was described: %s",
            type(module).__name__, type(error).__name__, str(error),
        )  # fmt: skip
        return None
    around = repr((told, surroundings())).encode(errors="surrogatepass")
    return Key(told, hashlib.blake2b(around, digest_size=20).hexdigest())
