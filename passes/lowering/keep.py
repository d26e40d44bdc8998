"""Has as many of the weights that rest elsewhere stay on their devices as memory allows.

Every weight that stays need not be brought again for each call. What is left to come and go is spread evenly over the
stages, so that bringing it has computing to hide behind (`streaming/spread`). Must run when weights have their
places, and before nodes do.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

from ...compiler.devices.device import Device
from ...compiler.ir.program import Program
from ...compiler.states.parts import pieces
from ...compiler.units import format_bytes
from ..analysis.memory_needs import Count, needs_of
from ..infra.base import Change, Pass
from ..placement.assignment import arranged
from ..streaming.loads import on_disk
from ..streaming.spread import stream

_TRIES = 6


@dataclass(frozen=True)
class Keep(Pass):
    """Changes where weights rest: on their device, as far as there is room."""

    name: ClassVar[str] = "keep"
    requires: ClassVar[frozenset[str]] = frozenset({"placed"})
    refuses: ClassVar[frozenset[str]] = frozenset({"pinned"})

    def run(self, program: Program) -> Change:
        """Decides on a copy, device after device; a weight of which rows are split stays on all devices or on none."""
        if not program.residency:
            return Change(0, "weights stay on their devices, for all do")
        kept = staying(program)
        nbytes = program.nbytes_of(kept)
        program.residency = {name: rests for name, rests in program.residency.items() if name not in kept}
        return Change(len(kept), f"weights of {format_bytes(nbytes)} stay on their devices")


def staying(program: Program) -> set[str]:
    """The names of weights that may stay on their devices, of a program whose weights have their places.

    Where more stays, stages may be cut otherwise, and so need larger slots. Then so much less is granted.
    """
    copy = arranged(program)
    resting, free = copy.residency, dict(copy.rig.free)
    for _ in range(_TRIES):
        copy.residency = resting
        kept = _fitting(copy, free)
        copy.residency = {name: rests for name, rests in resting.items() if name not in kept}
        needs = needs_of(copy, copy.places())
        over = {device: need.total - copy.rig.free[device] for device, need in needs.items()}
        if all(nbytes <= 0 for nbytes in over.values()):
            return kept
        free = {device: nbytes - max(0, over[device]) for device, nbytes in free.items()}
    return set()


def _fitting(copy: Program, free: Mapping[Device, int]) -> set[str]:
    """What fits beside the values and the slots that there are while nothing stays."""
    count = Count(copy, copy.places())
    count.refine()
    kept: set[str] = set()
    for device in copy.devices:
        need = count.need(device, None)
        stages = [{one.name: one for one in some} for some in count.staged.get(device, {}).values()]
        kept |= stream(
            stages, free[device] - count.resident_bytes(device) - need.values, True, on_disk(copy, stages)
        ).kept
    held = pieces(copy)
    coming = {one.name for some in count.staged.values() for stage in some.values() for one in stage}
    leaving = {held[name][0].whole for name in coming - kept}
    return {held[name][0].whole for name in kept} - leaving
