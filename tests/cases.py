"""Which cases of a table run with the fast tests; the others run with the slow ones."""

from __future__ import annotations

from collections.abc import Container, Iterable
from typing import Any

import pytest


def slow_but(fast: Container[Any], cases: Iterable[Any]) -> list[Any]:
    """The cases for ``parametrize``, marked as slow but for those named; a case is one value or a tuple of them."""
    return [
        pytest.param(*(case if isinstance(case, tuple) else (case,)), marks=() if case in fast else pytest.mark.slow)
        for case in cases
    ]
