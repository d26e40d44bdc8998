"""Tells of a refusal as soon as it is known, while what would fit is still looked for."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from contextvars import ContextVar

_TOLD: ContextVar[Callable[[str], None] | None] = ContextVar("dovetail refusals", default=None)


@contextlib.contextmanager
def telling(told: Callable[[str], None] | None) -> Iterator[None]:
    """Has what is refused meanwhile be told, without ways out, before these are looked for; with None, not."""
    token = _TOLD.set(told)
    try:
        yield
    finally:
        _TOLD.reset(token)


def tell_refusal(problem: Callable[[], str]) -> None:
    """Tells what was asked and why it does not fit, if somebody wants to know; an error that says so will follow."""
    told = _TOLD.get()
    if told is not None:
        told(problem())
