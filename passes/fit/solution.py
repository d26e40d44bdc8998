"""What a search finds: a way for each component, the bytes that they take together, and what they leave to one."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from ...compiler.devices.device import Device
from .options import Option
from .workload import Budgets, Load


@dataclass(frozen=True)
class Solution:
    """A way for each component by name, and the seconds of a picture."""

    ways: Mapping[str, Option]

    @property
    def seconds(self) -> float:
        """The predicted seconds of a picture, after all was loaded."""
        return sum(way.seconds for way in self.ways.values())


def left_for(load: Load, ways: Mapping[str, Option], budgets: Budgets) -> Budgets:
    """What the ways of other components leave for one: on each device, in its phase and beside what stays.

    What would stay there for longer than its phase is checked when all are put together.
    """
    others = [way for name, way in ways.items() if name != load.name]

    def taken(device: Device) -> int:
        own = sum(way.comes.get(device, 0) for way in others if way.phase == load.phase)
        stays = sum(way.stays.get(device, 0) for way in others)
        return own + stays + (sum(way.host for way in others) if device == budgets.host else 0)

    left = {device: max(0, n - taken(device)) for device, n in budgets.devices.items()}
    together = max(0, budgets.devices.get(budgets.host, 0) - sum(map(taken, budgets.together)))
    return replace(
        budgets, devices={one: min(n, together) if one in budgets.together else n for one, n in left.items()}
    )


def _held(ways: Sequence[Option], device: Device) -> int:
    return sum(way.stays.get(device, 0) + way.comes.get(device, 0) for way in ways)


def _peak(ways: Sequence[Option], phase: str, device: Device) -> int:
    """The bytes on a device in a phase at most."""
    mine = [way for way in ways if way.phase == phase]
    live = max((way.live.get(device, 0) for way in mine), default=0)
    return _held(mine, device) + sum(way.stays.get(device, 0) for way in ways if way.phase != phase) + live


def peaks(solution: Solution, budgets: Budgets) -> dict[tuple[str, Device], int]:
    """The bytes on each device in each phase at most, the host's resting weights included."""
    ways = list(solution.ways.values())
    phases = dict.fromkeys(way.phase for way in ways)
    resting = sum(way.host for way in ways)
    return {
        (phase, device): _peak(ways, phase, device) + (resting if device == budgets.host else 0)
        for phase in phases
        for device in budgets.devices
    }


def fits(solution: Solution, budgets: Budgets) -> bool:
    """Whether the ways fit together."""
    each = peaks(solution, budgets)
    shared: Counter[str] = Counter()
    for (phase, device), nbytes in each.items():
        if device in budgets.together:
            shared[phase] += nbytes
    alone = all(nbytes <= budgets.devices[device] for (_, device), nbytes in each.items())
    return alone and max(shared.values(), default=0) <= budgets.devices.get(budgets.host, 0)
