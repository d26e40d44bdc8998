"""What a search tries for a component: ways to place it under some budgets, on one device, by layers or in a mode."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property

from ...compiler.devices.device import Device
from ...compiler.spec.residency import Residency
from .groups import MODES, group_options, quick_options
from .in_turn import asks_for_parts, options_in_turn
from .machine import Machine
from .options import Option, options_of
from .workload import Budgets, Load

ALONE, LAYER = "one device", "layer"
"""How a component is split that is under no mode."""

TRIFLE = 0.01
"""Components that take no more of a picture than this together are placed on one device or by layers, under no mode."""


@dataclass(frozen=True)
class Trial:
    """What a search is about: components, devices, budgets, the lists of devices to try, and where weights may rest.

    ``groups`` are tried for components that devices are to compute together, and ``stays`` says that weights are tried
    on a device in part for good. What is named in ``whole`` is not computed in tiles.
    """

    loads: Sequence[Load]
    machine: Machine
    budgets: Budgets
    lists: Sequence[tuple[Device, ...]]
    places: Sequence[Residency]
    groups: Sequence[tuple[Device, ...]] = ()
    only: Mapping[str, str] = field(default_factory=dict)
    stays: bool = False
    whole: frozenset[str] = frozenset()

    def options(self, load: Load, budgets: Budgets) -> Iterator[Option]:
        """The ways to place a component under some budgets: over groups where a mode was asked for that is of these."""
        return (way for way in self._all_options(load, budgets) if not (way.tiled and load.name in self.whole))

    def _all_options(self, load: Load, budgets: Budgets) -> Iterator[Option]:
        if not load.asked.seeks_group:
            yield from options_of(load, self.machine, budgets, self.lists, self.places, self.stays)
            return
        if load.asked.chooses_mode:
            yield from self._quickest(load, budgets)
            return
        yield from group_options(load, self.machine, budgets, self.groups, self.places)
        if load.asked.may_be_alone:
            alone = [one for one in self.lists if len(one) == 1]
            yield from options_of(load.by_layers, self.machine, budgets, alone, self.places)

    def _quickest(self, load: Load, budgets: Budgets) -> Iterator[Option]:
        """The ways on one device and by layers, and those under modes, but for trifles.

        Where a number of micro-batches was asked for, ways by layers that are not in so many are left out, if any is.
        """
        least, only = math.inf, self.only.get(load.name, "")
        lists = [one for one in self.lists if only in ("", _kind(one))]
        in_parts = list(self._in_parts(load, budgets)) if only in ("", LAYER) else []
        yield from in_parts
        for way in options_of(load.by_layers, self.machine, budgets, lists, self.places, self.stays):
            is_whole = len(way.devices) > 1 and way.residency is Residency.DEVICE
            if only in ("", LAYER if load.asked.devices else _kind(way.devices)) and not (in_parts and is_whole):
                least = min(least, way.seconds if way.host <= budgets.of(budgets.host) else math.inf)
                yield way
        if load.name in self.trifles and not only:
            return
        modes = [mode for mode in MODES if only in ("", mode)]
        for way in quick_options(load, self.machine, budgets, self.groups, self.places, modes, least):
            least = min(least, way.seconds if way.host <= budgets.of(budgets.host) else math.inf)
            yield way
        if only in ("", LAYER) and not in_parts:
            yield from options_in_turn(load, self.machine, budgets, self.lists, least)

    def _in_parts(self, load: Load, budgets: Budgets) -> Iterator[Option]:
        """The ways by layers in as many micro-batches as were asked for, if they were."""
        if asks_for_parts(load):
            yield from options_in_turn(load, self.machine, budgets, self.lists, math.inf)

    @cached_property
    def trifles(self) -> frozenset[str]:
        """The components of which the quickest mode is not looked for: all of them together take next to nothing."""
        least: dict[str, float] = {}
        for load in self.loads:
            some = options_of(load.by_layers, self.machine, self.budgets, self.lists, self.places)
            least[load.name] = min((way.seconds for way in some), default=math.inf)
        most, found = TRIFLE * sum(one for one in least.values() if one < math.inf), []
        for name, seconds in sorted(least.items(), key=lambda one: one[1]):
            most -= seconds
            if most < 0:
                break
            found.append(name)
        return frozenset(found) if len(self.loads) > 1 else frozenset()

    def several(self, load: Load) -> list[tuple[Device, ...]]:
        """The lists of a proportional split of a component of which nothing was asked."""
        said = load.asked
        is_together = said.seeks_group and not said.chooses_mode
        is_together |= self.only.get(load.name, LAYER) != LAYER
        if said.devices or said.residency or said.shares or is_together or said.tiled:
            return []
        if said.chooses_mode and any(self._in_parts(load, self.budgets)):
            return []
        return [one for one in self.lists if len(one) > 1]


def _kind(devices: Sequence[Device]) -> str:
    return LAYER if len(devices) > 1 else ALONE


def places_of(loads: Sequence[Load], budgets: Budgets) -> list[Residency]:
    """Where weights may rest: on disk only where the host's memory may not have all of them."""
    has_room = sum(load.nbytes for load in loads) + max(load.chain.live for load in loads) <= budgets.of(budgets.host)
    return [Residency.DEVICE, Residency.HOST, *([] if has_room else [Residency.DISK])]
