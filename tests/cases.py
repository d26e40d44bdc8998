"""Which cases of a table run: with the fast tests, with the slow ones, or where a printed seed draws them."""

from __future__ import annotations

import os
import random
from collections.abc import Container, Iterable
from typing import Any

import pytest
import torch
from hypothesis import settings

IS_2_11 = torch.__version__ < "2.12"
"""Whether this is the oldest PyTorch that is supported."""
_THOROUGH = 100
"""Laws of a profile of hypothesis with as many examples are tried with many of them, however long they take."""


def slow_but(fast: Container[Any], cases: Iterable[Any]) -> list[Any]:
    """The cases for ``parametrize``, marked as slow but for those named; a case is one value or a tuple of them."""
    return [
        pytest.param(*(case if isinstance(case, tuple) else (case,)), marks=() if case in fast else pytest.mark.slow)
        for case in cases
    ]


def drawn(cases: Iterable[Any], count: int) -> list[Any]:
    """So many of the cases, in their order, as the seed draws them that `tests/conftest.py` sets and prints.

    With DOVETAIL_TEST_CASES=all it is all of them; with some, `tests/conftest.py` draws a part of these, and of others.
    """
    known = list(cases)
    if os.environ.get("DOVETAIL_TEST_CASES") == "all" or count >= len(known):
        return known
    chosen = random.Random(os.environ["DOVETAIL_TEST_SEED"]).sample(range(len(known)), count)
    return [known[number] for number in sorted(chosen)]


def examples(quick: int, part: int) -> settings:
    """So many examples of a law that takes long; in a thorough run that part of those of other laws."""
    known = settings().max_examples
    return settings(max_examples=quick if known < _THOROUGH else known // part)


def numbers_drawn(last: int, step: int) -> range:
    """Every so many-th number from 1 to the last; the seed of the run draws which of the first ones it begins with."""
    return range(1 + int(os.environ["DOVETAIL_TEST_SEED"]) % min(step, last), last + 1, step)
