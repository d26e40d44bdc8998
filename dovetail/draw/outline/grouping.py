"""The operations of a program in groups that a drawing shows as one box: segments, blocks, or devices.

Groups of segments and of blocks are runs of consecutive operations. An operation belongs to the block whose weight it
reads or whose module it came from, and else to that of the operation before it, as it does where devices are chosen.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Literal, TypeAlias

from torch.fx import Node

from ...compiler.devices.device import Device
from ...compiler.ir.program import Block, Program, Segment, origin_of, placement_of

Depth: TypeAlias = Literal["segments", "blocks", "nodes"]
DEPTHS: tuple[Depth, ...] = ("segments", "blocks", "nodes")


@dataclass(frozen=True)
class Group:
    """Operations that are one box, in graph order: where they run, and the module path that they are named after."""

    where: str
    nodes: tuple[Node, ...]
    unit: str = ""


def by_segment(program: Program) -> list[Group]:
    """A group for each segment; of one that devices compute together, one for each block."""
    if program.is_grouped:
        return by_block(program)
    return [Group(place_of(program, one.group), one.nodes) for one in program.segments]


def by_block(program: Program) -> list[Group]:
    """A group for each run of operations of one block, or of one module outside blocks, on one main device."""
    segment_of = {node: one for one in program.segments for node in one.nodes}
    units = units_of(program)
    return _runs(program, segment_of, lambda node: (units[node], segment_of[node].device), units)


def by_device(program: Program) -> list[Group]:
    """A group for each device, or group of devices, with all that runs there."""
    nodes: dict[str, list[Node]] = {}
    for one in program.segments:
        nodes.setdefault(place_of(program, one.group), []).extend(one.nodes)
    return [Group(where, tuple(found)) for where, found in nodes.items()]


def units_of(program: Program) -> dict[Node, str]:
    """The block of each operation of a cut program, or the first names of its module's path."""
    find = unit_finder(program.blocks)
    found: dict[Node, str] = {}
    last = ""
    for node in (node for segment in program.segments for node in segment.nodes):
        path = next((name.rpartition(".")[0] for name in reversed(placement_of(node).weights)), "")
        unit = find(path or origin_of(node).module)
        if unit and (path or unit in find.blocks):
            last = unit
        found[node] = last = last or unit
    return found


def unit_finder(blocks: Sequence[Block]) -> UnitFinder:
    """Finds units by module path, each path once."""
    return UnitFinder(frozenset(block.name for block in blocks))


@dataclass(frozen=True)
class UnitFinder:
    """Says of a module path in which block it lies, or else its first name, or two names where blocks lie beside it."""

    blocks: frozenset[str]

    def __call__(self, path: str) -> str:
        """The unit; empty for an empty path."""
        names = path.split(".") if path else []
        starts = (".".join(names[:count]) for count in range(1, len(names) + 1))
        block = next((start for start in starts if start in self.blocks), None)
        if block or not names:
            return block or ""
        return ".".join(names[: 2 if self._has_beside(names[0]) else 1])

    def _has_beside(self, first: str) -> bool:
        return any(name.startswith(f"{first}.") and not name[len(first) + 1 :].isdigit() for name in self.blocks)


def place_of(program: Program, group: Sequence[Device]) -> str:
    """The names of devices that share a segment, main device first."""
    return " & ".join(device.name for device in program.devices if device in group)


def _runs(
    program: Program,
    segment_of: dict[Node, Segment],
    key: Callable[[Node], Hashable],
    units: dict[Node, str],
) -> list[Group]:
    nodes = [node for segment in program.segments for node in segment.nodes]
    found = []
    for _, run in groupby(nodes, key):
        of_run = tuple(run)
        devices = {device for node in of_run for device in segment_of[node].group}
        found.append(Group(place_of(program, tuple(devices)), of_run, units[of_run[0]]))
    return found
