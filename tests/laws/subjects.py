"""Compiled modules whose schedules are spoiled, and how to tell whether anybody notices."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from dovetail.compiler.errors import DovetailError, VerificationError
from dovetail.compiler.ir.program import Program
from dovetail.compiler.ir.schedule import Schedule
from dovetail.components.compiled import CompiledModule
from dovetail.passes.verify.verifier import verify
from dovetail.runtime.executor import Executor
from dovetail.runtime.store.program_weights import ProgramWeights

from .graphs import same_bits
from .modules import WIDTH, Attention, Conv, Mlp, Modulated, Rope, Shared, Tower, Writer


class Overtaking(nn.Module):
    """Writes on what other devices read, without any need of what they make of it."""

    def __init__(self) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(Mlp() for _ in range(4))
        self.head = nn.Linear(WIDTH, WIDTH)

    def forward(self, x: torch.Tensor, cond: torch.Tensor) -> Any:
        notes, results = self.head(x), []
        for block in self.blocks:
            results.append(block(notes, cond))
            notes.mul_(0.5).add_(cond[:, None])
        return results, self.head(notes)


TOWERS: dict[str, Callable[[], nn.Module]] = {
    "a transformer": lambda: Tower((Attention, Modulated, Mlp), 4, {}, False),
    "a unet with skips": lambda: Tower((Conv,), 5, {3: 1, 4: 0}, False),
    "writes over devices": lambda: Tower((Writer, Rope), 4, {2: 0}, True),
    "a shared layer": lambda: Tower((Shared, Mlp), 3, {}, True),
    "writes that overtake": Overtaking,
}


@dataclass
class Subject:
    """A compiled module, a call of it, and what the call yields."""

    compiled: CompiledModule
    weights: ProgramWeights
    args: tuple[torch.Tensor, ...]
    expected: list[Any]

    @property
    def program(self) -> Program:
        return self.compiled.program

    def survives(self, schedule: Schedule, weights: Any = None) -> bool:
        """Whether nobody notices, on simulated devices, that another schedule runs, or other weights."""
        try:
            ready = Executor(self.program, schedule)
            ready.bind(weights or self.weights)
            found = ready([x.to(self.program.main.torch) for x in self.args])
            where = {leaf.device for leaf in found if isinstance(leaf, torch.Tensor)}
            return {self.program.main.torch} >= where and all(map(same_bits, found, self.expected))
        except (DovetailError, KeyError):
            return False

    def is_accepted(self, schedule: Schedule) -> bool:
        """Whether the verifier accepts another schedule."""
        kept, self.program.schedule = self.program.schedule, schedule
        try:
            verify(self.program)
        except VerificationError:
            return False
        finally:
            self.program.schedule = kept
        return True


def count(verdicts: list[bool], what: str, name: str) -> None:
    """Every mutant must have been caught, and there must have been some."""
    caught = verdicts.count(False)
    print(f"{name}: {caught} of {len(verdicts)} {what} caught")
    assert caught == len(verdicts) > 0
