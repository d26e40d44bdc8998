"""Gives every weight of a module a device without a graph of it, for a module that is compiled by its parts.

The blocks are found from the names of the weights and go to the devices in contiguous ranges in the order of the names,
by the rule of the layer split; where a module has fewer blocks than devices, its largest parts are taken apart until
there are enough. Everything outside the blocks lies on the main device. The same weights, devices and shares always
give the same answer, so that parts that are compiled at different times agree.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from itertools import islice

from ...compiler.devices.rig import Rig
from ...compiler.ir.program import Block
from ...compiler.ir.weight import Weight
from ...compiler.spec.residency import Residency
from .assignment import Assignment, assigned_whole
from .blocks import blocks_by_name
from .place import Part, Room, split_parts


def split_by_name(
    weights: Mapping[str, Weight],
    rig: Rig,
    shares: Sequence[float] = (),
    given: Assignment | None = None,
    residency: Mapping[str, Residency] | None = None,
) -> Assignment:
    """What every weight gets, by its name; it may exceed what is free.

    Args:
        weights: the module's weights by name, each once, in the order of its parts.
        rig: main device first, with what is free on each.
        shares: weighs the devices instead of their free memory.
        given: what weights have already, and keep.
        residency: where weights are kept that do not stay where they are read.
    """
    free = rig.free
    offers = [*shares, *[0.0] * len(free)][: len(free)] if shares else ()
    units = units_of(weights, sum(offer > 0 for offer in offers or free.values()))
    inside = {name for unit in units for name in unit.weights}
    rest = sum(weight.nbytes for weight in weights.values() if weight.name not in inside)
    rooms = list(map(Room, free.values()))
    counts = split_parts([Part(_nbytes(weights, unit)) for unit in units], rooms, Part(rest), offers)
    homes = dict.fromkeys(weights, rig.devices[0])
    queue = iter(units)
    for device, count in zip(rig, counts, strict=True):
        for unit in islice(queue, count):
            homes.update(dict.fromkeys(unit.weights, device))
    return {**assigned_whole(homes, residency or {}), **(given or {})}


def units_of(weights: Mapping[str, Weight], least: int = 1) -> tuple[Block, ...]:
    """What is placed as one: the blocks, and where these are fewer than ``least``, the parts of the largest ones."""
    units = list(blocks_by_name(weights)) or [Block("", tuple(weights))]
    while len(units) < least:
        largest = max((unit for unit in units if _parts(unit)), key=lambda unit: _nbytes(weights, unit), default=None)
        if largest is None:
            break
        place = units.index(largest)
        units[place : place + 1] = _parts(largest)
    return tuple(units)


def _nbytes(weights: Mapping[str, Weight], unit: Block) -> int:
    return sum(weights[name].nbytes for name in unit.weights)


def _parts(unit: Block) -> list[Block]:
    """The parts of a unit one level of modules below it; none where it is one module."""
    depth = len(unit.name.split(".")) if unit.name else 0
    held: dict[str, list[str]] = defaultdict(list)
    for name in unit.weights:
        path = name.split(".")[:-1]
        held[".".join(path[: depth + 1])].append(name)
    if len(held) == 1 and next(iter(held)) == unit.name:
        return []
    return [Block(name, tuple(inside)) for name, inside in held.items()]
