"""What a pass is.

A pass is a frozen dataclass: its class attribute ``name`` is its name, its fields are its options, so that code, log,
``--passes "place{headroom=2GiB},pin,cut"`` and the plan file speak the same words (after xDSL's pass manager). It
states what must hold before it and what holds after it; the manager (``manager.py``) checks both.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass, fields
from typing import ClassVar

from ...compiler.ir.program import Program


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
