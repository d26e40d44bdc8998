"""Runs passes one after another, and checks what each requires, ensures and keeps.

Of a pass that says that every op reads what it read before, the manager checks that too.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TypeAlias

from ...compiler.errors import DovetailError, FailedPassError, PassError, VerificationError
from ...compiler.ir.program import Program
from ..verify.postconditions import POSTCONDITIONS
from ..verify.snapshot import Violation
from ..verify.translation import LAW, Reading, differences, read
from ..verify.verifier import explain
from .base import Change, Pass

logger = logging.getLogger(__name__)

Callback: TypeAlias = Callable[[Pass, Program, Change], None]
"""Called after each pass: verification, timing, dumps and progress all hang on it."""


@dataclass(frozen=True)
class PassManager:
    """Runs passes in order, checks what each requires, ensures and keeps, and calls back after each."""

    passes: Sequence[Pass]
    callbacks: Sequence[Callback] = ()

    def run(self, program: Program) -> Program:
        """Runs all passes over the program, in place, and returns it.

        Raises PassError when a pass meets a program that it cannot run on, fails, or does not do what it ensures; the
        error names its history. Raises VerificationError when a pass changes what ops read, and says that it keeps it.
        """
        reading: Reading | None = None  # of the program as it is now, where that is known
        for step in self.passes:
            _check(step, program)
            before = (reading or read(program)) if step.keeps_values else None
            change = _guarded(step, program)
            reading = _check_done(step, program, before)
            program.facts |= step.ensures
            program.history = (*program.history, str(step))
            logger.info("%s: %s", step, change)
            for callback in self.callbacks:
                callback(step, program, change)
        return program


def _check(step: Pass, program: Program) -> None:
    missing = step.requires - program.facts
    refused = step.refuses & program.facts
    if missing or refused:
        why = f"needs a program that is {_words(missing)}" if missing else f"refuses one that is {_words(refused)}"
        raise PassError(f"pass {step.name} {why}; run so far: {' → '.join(program.history) or 'no pass'}")


def _check_done(step: Pass, program: Program, before: Reading | None) -> Reading | None:
    """Checks what a pass ensures, and against a reading from before that values were kept; gives that of afterwards."""
    missing = frozenset(fact for fact in step.ensures if fact in POSTCONDITIONS and not POSTCONDITIONS[fact](program))
    if missing:
        history = " → ".join(program.history) or "no pass"
        raise FailedPassError(f"pass {step.name} ensures {_words(missing)}, which the program is not after {history}")
    if before is None:
        return None
    after = read(program, before.table)
    for node, problem in differences(before, after, program.output):
        raise VerificationError(explain(program, Violation(step.name, problem, node), LAW))
    return after


def _guarded(step: Pass, program: Program) -> Change:
    try:
        return step.run(program)
    except DovetailError:
        raise
    except Exception as error:
        history = " → ".join(program.history) or "no pass"
        raise FailedPassError(f"pass {step.name} failed after {history}: {type(error).__name__}: {error}") from error


def _words(facts: frozenset[str]) -> str:
    return " and ".join(sorted(facts))
