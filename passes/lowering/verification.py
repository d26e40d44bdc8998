"""Checks the rules of `verify/` as the last pass. It changes nothing, and takes time linear in the nodes."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from ...compiler.ir.program import Program
from ..infra.base import Change, Pass
from ..verify.verifier import RULES, verify


@dataclass(frozen=True)
class Verify(Pass):
    """Checks everything that has been established."""

    name: ClassVar[str] = "verify"
    ensures: ClassVar[frozenset[str]] = frozenset({"verified"})

    def run(self, program: Program) -> Change:
        """Checks the rules; raises VerificationError for the first that is broken."""
        verify(program)
        return Change(0, f"of {len(RULES)} rules broken")
