"""Cuts the graph into segments, once at each change of device, and lists the values that cross.

A segment is a maximal run of consecutive nodes on one device. A value that is read on another device crosses to it
once, however many nodes and segments read it there. A value whose memory is written between two readings crosses once
for each state that is read. Must run on a pinned program, once.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import ClassVar

from torch.fx import Node

from ...compiler.ir.aliasing import makers_of, readings, writers_of
from ...compiler.ir.program import Crossing, Program, Segment, device_of, place_node, placement_of, tensors_of
from ...compiler.ir.split import members, reads_part, split_of
from ...compiler.spec.devices import Device
from ..analysis.segments import runs
from ..infra.base import Change, Pass


@dataclass(frozen=True)
class Cut(Pass):
    """Partitions the nodes into segments and finds the crossings."""

    name: ClassVar[str] = "cut"
    requires: ClassVar[frozenset[str]] = frozenset({"pinned"})
    ensures: ClassVar[frozenset[str]] = frozenset({"cut"})
    refuses: ClassVar[frozenset[str]] = frozenset({"cut"})
    keeps_values: ClassVar[bool] = True

    def run(self, program: Program) -> Change:
        """Groups consecutive nodes by device, then walks all readings once."""
        program.segments = tuple(
            Segment(index, device, tuple(nodes), group)
            for index, (device, group, nodes) in enumerate(runs(program, device_of))
        )
        for segment in program.segments:
            for node in segment.nodes:
                place_node(node, segment=segment.index)
        program.crossings = tuple(_crossings(program))
        return Change(max(len(program.segments) - 1, 0), f"cuts, {len(program.crossings)} values cross")


def _crossings(program: Program) -> Iterator[Crossing]:
    """Each state of a value that is read away from home, at its first reader; a Python number is at home everywhere."""
    seen: set[tuple[Node, int, Device]] = set()
    writers = writers_of(program)
    for reader, value, version in readings(program):
        for target in _targets(program, reader, value, version):
            if (value, version, target) not in seen:
                seen.add((value, version, target))
                producer = _producer(value, version, writers)
                yield Crossing(value, version, target, producer, placement_of(reader).segment)


def _targets(program: Program, reader: Node, value: Node, version: int) -> list[Device]:
    """The devices to which a value must be brought for a reader: one that is split to its own first, if not written."""
    if not tensors_of(value):
        return []
    away = [device for device in members(program, reader) if device != device_of(value)]
    if reads_part(reader, value):
        return []
    return [device_of(value), *away] if split_of(value) and not version else away


def _producer(value: Node, version: int, writers: dict[int, list[Node]]) -> int | None:
    """The segment that left a value in a state: that of its last write by then, or of its making."""
    segments = [placement_of(node).segment for node in makers_of(value, version, writers)]
    return max((segment for segment in segments if segment is not None), default=None)
