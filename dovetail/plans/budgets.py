"""Whether the devices that a plan is for have as much memory as the plan itself predicts that it takes."""

from __future__ import annotations

from collections.abc import Iterator

from ..compiler.devices.rig import Rig
from ..compiler.errors import DoesNotFitError
from ..compiler.ir.program import Program
from ..compiler.units import format_bytes
from ..passes.simulate.memory import simulate


def too_small_budgets(name: str, program: Program, rig: Rig) -> Iterator[DoesNotFitError]:
    """What a program lacks on each device that gives it less than its fullest moment takes.

    A plan file says twice what a device has: in its ``rig`` for all components, and in its program what of that is left
    to this one.
    """
    if program.schedule is None:
        return
    for device, usage in simulate(program).items():
        budget = min(program.rig[device].free, rig[device].free)
        if usage.total > budget:
            yield DoesNotFitError(
                f"{name} takes {format_bytes(usage.total)} of {device} at its fullest moment, and the devices that it "
                f"was planned for give it {format_bytes(budget)} there",
                {device: usage.total - budget},
                f"compile it again for these devices, or for more of {device} (--rig, --max-vram)",
                component=name,
            )
