"""Where a whole pipeline runs, as one value: the plan of each component, budgets, phases and tiles."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field

from ..compiler.devices.device import Device
from ..components.plan import ComponentPlan
from ..conventions.request import Request
from .phases import Phases
from .tiling import Tile


@dataclass(frozen=True)
class PipelinePlan:
    """What was decided of a pipeline, whoever did: a person, a search, or a plan file.

    Args:
        request: the devices with their budgets, and what is asked of the components.
        components: the plan of each component that the pipeline has placed itself, by name.
        is_open: whether devices are still to be searched; components have those that they get without a search.
        phases: the phase in which each component works.
        tiles: those in which VAEs work that decode in tiles, by component.
        spared: the bytes of each device that programs leave, for plans were refused that did not.
    """

    request: Request
    components: Mapping[str, ComponentPlan]
    is_open: bool = False
    phases: Phases = field(default_factory=Phases)
    tiles: Mapping[str, Tile] = field(default_factory=dict)
    spared: Counter[Device] = field(default_factory=Counter)

    def __str__(self) -> str:
        """A line for each component."""
        lines = []
        for name, plan in self.components.items():
            tile = f", in tiles of {self.tiles[name]}" if name in self.tiles else ""
            going = "" if self.phases.keeps(name) else ", weights come and go in each call"
            lines.append(f"{name}: {plan}, while {self.phases(name)}{going}{tile}")
        return "\n".join(lines)
