"""Runs a class of transformers over three simulated devices beside eager."""

from __future__ import annotations

import logging
import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

import dovetail
from dovetail.compiled_by_parts import CompiledByParts
from dovetail.compiler.errors import DovetailError
from testbed.results import differences, fakes_within

from .of_transformers import CASES, Case

BACKEND = "sim0&sim1&sim2"
EQUAL = "equal"
NAMED = "as was said, "
RIGHT = ("refused: ", NAMED)


@dataclass
class Outcome:
    """How a class was compiled, and what its calls gave.

    That is ``equal``, a sentence that refused it, a difference after a line that named its cause, or a difference.
    """

    how: str = ""
    first: str = ""
    values: str = ""
    size: str = ""

    @property
    def is_right(self) -> bool:
        """Whether every call was equal, or refused in one sentence."""
        return all(one == EQUAL or one.startswith(RIGHT) for one in (self.first, self.values, self.size) if one)

    @property
    def is_named(self) -> bool:
        """Whether a call was not equal, and a line had said that this may be."""
        return any(one.startswith(NAMED) for one in (self.first, self.values, self.size))


def compare(name: str) -> Outcome:
    """Compiles a class with an empty cache and calls it three times."""
    case, outcome, said = CASES[name], Outcome(), _Said()
    logging.getLogger("dovetail").addHandler(said)
    try:
        return _compare(case, outcome, said)
    finally:
        logging.getLogger("dovetail").removeHandler(said)


def _compare(case: Case, outcome: Outcome, said: _Said) -> Outcome:
    module = case.build()
    with torch.no_grad(), _empty_cache():
        first = case.call(1, 0)
        try:
            compiled = dovetail.compile(module, (), dict(first), backend=BACKEND)
        except DovetailError as error:
            outcome.first = _refused(error)
            return outcome
        except Exception as error:
            outcome.first = f"raised {type(error).__name__}: {error}".replace("\n", " ")[:200]
            return outcome
        outcome.how = "by parts" if _is_by_parts(compiled) else "whole"
        outcome.how += ", without caches" if said.drops_caches else ""
        outcome.how += ", in the way of traces" if said.names_ways else ""
        outcome.first = _call(compiled, module, first, said)
        outcome.values = _call(compiled, module, case.call(2, 0), said)
        outcome.size = _call(compiled, module, case.call(3, 1), said)
        if outcome.size.startswith("refused: ") and not _is_by_parts(compiled):
            again = dovetail.compile(module, (), case.call(3, 1), backend=BACKEND)
            refused, outcome.size = outcome.size, _call(again, module, case.call(3, 1), said)
            outcome.size = refused[:60] if outcome.size == EQUAL else outcome.size
    return outcome


def _is_by_parts(compiled: Any) -> bool:
    """Whether its own Python runs; a program of the whole may stand behind a module that returns no caches."""
    if not isinstance(compiled, CompiledByParts):
        return False
    return [program.program.name for program in compiled.programs] != [type(compiled._component.module).__name__]


class _Said(logging.Handler):
    """Hears whether it is said that caches are not returned, and that the model has another way while it is traced."""

    def __init__(self) -> None:
        super().__init__()
        self.drops_caches = self.names_ways = False

    def emit(self, record: logging.LogRecord) -> None:
        self.drops_caches |= "returns no past_key_values" in record.getMessage()
        self.names_ways |= "looks at values of its inputs unless it is being traced" in record.getMessage()


_CACHES = ("past_key_values", "cache_params", "state")


def _call(compiled: Any, module: nn.Module, call: dict[str, Any], said: _Said) -> str:
    """What a call gave; where it was said that it returns no caches, beside the module without."""
    try:
        found = compiled(**call)
    except DovetailError as error:
        return _refused(error)
    except Exception as error:
        return f"raised {type(error).__name__}: {error}".replace("\n", " ")[:200]
    expected = module(**({"use_cache": False} if said.drops_caches else {}), **call)
    if said.drops_caches:
        expected = {name: value for name, value in expected.items() if name not in _CACHES or name in found}
    found_wrong = fakes_within(module, call, found, expected) or list(differences(found, expected))
    if found_wrong and said.names_ways:
        return NAMED + found_wrong[0]
    return found_wrong[0] if found_wrong else EQUAL


def _refused(error: DovetailError) -> str:
    return f"refused: {error}".replace("\n", " ")


@contextmanager
def _empty_cache() -> Iterator[None]:
    before = os.environ.get("DOVETAIL_CACHE_DIR")
    with tempfile.TemporaryDirectory() as folder:
        os.environ["DOVETAIL_CACHE_DIR"] = folder
        try:
            yield
        finally:
            from dovetail.cache import traces

            traces.wait()
            os.environ.pop("DOVETAIL_CACHE_DIR")
            if before is not None:
                os.environ["DOVETAIL_CACHE_DIR"] = before
