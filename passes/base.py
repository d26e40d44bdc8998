"""What a pass is, and the manager that runs passes one after another.

A pass is a frozen dataclass: its class attribute ``name`` is its name, its fields are its options, so that code, log,
``--passes "place{headroom=2GiB},pin,cut"`` and the plan file speak the same words (after xDSL's pass manager). It
states what must hold before it and what holds after it, and the manager checks both. Of a pass that says that every op
reads what it read before, the manager checks that too.
"""

from __future__ import annotations

import logging
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields
from typing import ClassVar, TypeAlias

from ..compiler.errors import DovetailError, PassError, VerificationError
from ..compiler.ir.program import Program
from .verify.postconditions import EVIDENT
from .verify.snapshot import Violation
from .verify.translation import LAW, Reading, differences, read

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class Change:
    """What a pass did: how many things it changed, and which."""

    count: int
    what: str

    def __bool__(self) -> bool:
        return self.count > 0

    def __str__(self) -> str:
        return f"{self.count} {self.what}"


@dataclass(frozen=True)
class Pass(ABC):
    """One step from program to program: it changes the program it is given and says what it changed.

    ``keeps_values`` says that it only moves, merges and drops nodes, and names memory anew: that every op that is left
    reads the same version of the same value as before.
    """

    name: ClassVar[str]
    requires: ClassVar[frozenset[str]] = frozenset()
    ensures: ClassVar[frozenset[str]] = frozenset()
    refuses: ClassVar[frozenset[str]] = frozenset()
    keeps_values: ClassVar[bool] = False

    @abstractmethod
    def run(self, program: Program) -> Change:
        """Changes the program."""

    def __str__(self) -> str:
        changed = [(f.name, getattr(self, f.name)) for f in fields(self) if getattr(self, f.name) != f.default]
        options = ",".join(f"{name}={_option_text(value)}" for name, value in changed)
        return self.name + (f"{{{options}}}" if options else "")


def _option_text(value: object) -> str:
    return ":".join(map(_number_text, value)) if isinstance(value, tuple) else str(value)


def _number_text(number: float) -> str:
    return f"{number:g}" if float(f"{number:g}") == number else repr(number)


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
        for step in self.passes:
            _check(step, program)
            before = read(program) if step.keeps_values else None
            change = _guarded(step, program)
            _check_done(step, program, before)
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


def _check_done(step: Pass, program: Program, before: Reading | None) -> None:
    missing = frozenset(fact for fact in step.ensures if fact in EVIDENT and not EVIDENT[fact](program))
    if missing:
        history = " → ".join(program.history) or "no pass"
        raise PassError(f"pass {step.name} ensures {_words(missing)}, which the program is not after {history}")
    for node, problem in differences(before, program) if before else ():
        from .verify.verifier import explain  # which is a pass itself

        raise VerificationError(explain(program, Violation(step.name, problem, node), LAW))


def _guarded(step: Pass, program: Program) -> Change:
    try:
        return step.run(program)
    except DovetailError:
        raise
    except Exception as error:
        history = " → ".join(program.history) or "no pass"
        raise PassError(f"pass {step.name} failed after {history}: {type(error).__name__}: {error}") from error


def _words(facts: frozenset[str]) -> str:
    return " and ".join(sorted(facts))
