"""Whether a thread of ours runs a call of a pipeline before its turn; such a thread never takes the turn."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping, Sequence
from contextvars import ContextVar
from typing import Any

import torch

from ..conventions.modes import Watching

_DROPOUT = "dropout_p"
"""What operations call the share of numbers that they drop at random."""


class EndedError(Exception):
    """Ends a run ahead where it can go no further; it is seen by nobody but the thread that runs."""


_RUNNING: ContextVar[object | None] = ContextVar("dovetail run ahead", default=None)


def running_ahead() -> object | None:
    """What this thread runs ahead, or None."""
    return _RUNNING.get()


@contextlib.contextmanager
def run_ahead(what: object) -> Iterator[None]:
    """Has this thread be one that runs ahead meanwhile: components answer as that says, and nobody has the turn."""
    token = _RUNNING.set(what)
    try:
        yield
    finally:
        _RUNNING.reset(token)


class GivenNumbersAlone(Watching):
    """Ends a run ahead where it would draw from PyTorch's own generators, whose next numbers others draw meanwhile."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        """Lets an operation pass; raises EndedError for one that draws numbers without a generator."""
        given = kwargs or {}
        if draws_numbers(func, args, given):
            raise EndedError(f"{func} draws random numbers that other threads draw too")
        return func(*args, **given)


def draws_numbers(operation: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> bool:
    """Whether an operation draws random numbers from PyTorch's own generators; attention without dropout draws none."""
    if torch.Tag.nondeterministic_seeded not in getattr(operation, "tags", ()):
        return False
    if any(isinstance(one, torch.Generator) for one in (*args, *kwargs.values())):
        return False
    known = operation._schema.arguments
    at = next((number for number, one in enumerate(known) if one.name == _DROPOUT), None)
    if at is None:
        return True
    share = args[at] if at < len(args) else kwargs.get(_DROPOUT, known[at].default_value)
    return not isinstance(share, (int, float)) or share != 0
