"""Says that blocks which do the same are to be compiled by PyTorch's Inductor, once for all of them.

Inductor fuses the operations of a block into kernels, which takes tens of seconds once and rounds otherwise. Equal
blocks (the same operations on the same shapes, over other weights) share what it makes. A block that runs as one can
have nothing of the schedule inside: `schedule` then awaits what a block awaits before it, and sends and frees after it
what is not the block's own. What Inductor takes for the values inside is not known before it has compiled: what is
predicted is the memory of the same blocks uncompiled.

Must run before the schedule is written. Simulated devices have no kernels of Inductor: there, over rows, and where
sizes are open, blocks run as they are, which is said.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass
from typing import ClassVar

from ...compiler.ir.block_spans import COMPILED
from ...compiler.ir.program import Program
from ..infra.base import Change, Pass

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class Inductor(Pass):
    """Has equal blocks compiled by Inductor."""

    name: ClassVar[str] = "inductor"
    requires: ClassVar[frozenset[str]] = frozenset({"cut"})
    refuses: ClassVar[frozenset[str]] = frozenset({"scheduled"})
    ensures: ClassVar[frozenset[str]] = frozenset({COMPILED})

    def run(self, program: Program) -> Change:
        """Says what speaks against it; the blocks are found where they run."""
        why = _why_not(program)
        if why:
            logger.warning("%s is not compiled by Inductor: %s; its blocks run as they are", program.name, why)
        return Change(0 if why else len(program.blocks), "blocks for Inductor")


def _why_not(program: Program) -> str:
    if all(device.is_simulated for device in program.devices):
        return "simulated devices run no kernels of it"
    if program.is_sliced:
        return "split mode row slices its weights"
    if program.is_grouped:
        return "devices compute its operations together, in parts"
    if program.symbols:
        return "its sizes are dynamic"
    return "" if len(program.blocks) > 1 else "it has no repeated blocks"
