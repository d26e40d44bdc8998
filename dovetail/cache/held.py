"""What objects of Python's own library hold: those that stand among somebody's globals as settings or tables.

``SimpleNamespace``, ``ContextVar``, ``ChainMap``, ``itemgetter``: what pickle would write of them says what they are.
A lock, a generator and the like hold nothing that can be told.
"""

from __future__ import annotations

import threading
import weakref
from contextvars import ContextVar
from logging import Logger
from types import MappingProxyType
from typing import Any


def held_by(value: Any) -> Any:
    """What an object of Python's own library holds, as plain values and containers; None where that cannot be told."""
    if isinstance(value, ContextVar):
        try:
            return value.get()
        except LookupError:
            return None
    if isinstance(value, threading.local):
        return sorted(vars(value).items())
    if isinstance(value, MappingProxyType):
        return dict(value)
    if isinstance(value, weakref.ref):
        return value()
    if isinstance(value, Logger):  # whom it logs to is no setting
        return value.name
    try:
        return value.__reduce_ex__(4)[1:]
    except Exception:  # what cannot be pickled says so in many ways
        return None
