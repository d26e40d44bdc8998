"""Cuts the graph into segments, once at each change of device, and puts in the transfers of the values that cross.

A segment is a maximal run of consecutive nodes on one device, and of one micro-batch. A value that is read on another
device is brought there by a transfer, once, however many nodes and segments read it there. One whose memory is written
between two readings is brought once for each content that is read: behind the last write before that reading. In the
place of several views that crosses which they are views of, where that is no more bytes (``shared_bases.py``). Where
nodes run on groups a reshard brings it to all devices that read it, and what gathers parts does so on each of these,
unless the whole is written. Afterwards every node reads values on its own devices. Must run on a pinned program, once.
"""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import ClassVar

from torch.fx import Node

from ...compiler.devices.device import Device
from ...compiler.ir.aliasing import storages_of, writes
from ...compiler.ir.ops import RESHARD, TRANSFER
from ...compiler.ir.program import (
    HERE,
    MOVING,
    Placement,
    Program,
    Segment,
    device_of,
    place_node,
    placement_of,
    tensors_of,
    value_of,
    weight_name,
)
from ...compiler.ir.split import assembles, is_shared, original, split_of
from ...compiler.ir.value import TensorType
from ...compiler.states.parts import members
from ..analysis.segments import runs
from ..infra.base import Change, Pass
from .shared_bases import Key, share_bases, times_written


@dataclass(frozen=True)
class Cut(Pass):
    """Partitions the nodes into segments and brings values to the devices that read them."""

    name: ClassVar[str] = "cut"
    requires: ClassVar[frozenset[str]] = frozenset({"pinned"})
    ensures: ClassVar[frozenset[str]] = frozenset({"cut"})
    refuses: ClassVar[frozenset[str]] = frozenset({"cut"})
    keeps_values: ClassVar[bool] = True

    def run(self, program: Program) -> Change:
        """Groups consecutive nodes by device, then walks all readings once."""
        memory = share_bases(program)
        program.segments = tuple(
            Segment(index, device, tuple(nodes), group)
            for index, (device, group, nodes) in enumerate(runs(program, device_of, by_part=True))
        )
        for segment in program.segments:
            for node in segment.nodes:
                place_node(node, segment=segment.index)
        count = _Transfers(program, memory).insert()
        return Change(max(len(program.segments) - 1, 0), f"cuts, {count} values cross")


class _Transfers:
    """What was brought to devices so far, in the content that values have at a place of the graph."""

    def __init__(self, program: Program, memory: Mapping[Key, int]) -> None:
        nodes = list(program.graph.nodes)
        inputs = sum(node.op == "placeholder" for node in nodes)
        self.program = program
        self.is_shared = any(map(is_shared, program.ops()))
        self.nodes = nodes
        self.storages = program.fresh_storages()
        self.memory = memory
        self.written: Counter[int] = Counter()
        self.ever_written = {storage for node in nodes for storage in writes(node)}
        self.read_on: defaultdict[Node, set[Device]] = defaultdict(set)  # what is brought to groups
        self.brought: dict[Node, dict[Device | None, Node]] = {}  # by device, or to a group
        self.of_memory: dict[int, list[Node]] = {}  # the values that were brought, by the memory that they lie in
        self.last_write: dict[int, int] = {}  # to a piece of memory, by its place among the nodes
        # Behind which of the nodes each has its content: what is brought of it stands there. Inputs come first, all.
        self.behind = {node: max(place, inputs - 1) for place, node in enumerate(nodes)}
        self.ends: dict[int, Node] = {}  # what was put behind a node last

    def insert(self) -> int:
        """Has every node read values that lie where it runs; returns how many of them are brought elsewhere."""
        for place, node in enumerate(self.nodes):
            for value in () if node.target in MOVING else node.all_input_nodes:
                if tensors_of(value) and not weight_name(value) and not split_of(value):
                    self._bring(value, node)
            self.written.update(writes(node))
            for storage in writes(node):
                self.last_write[storage] = place
                for value in self.of_memory.pop(storage, ()):
                    self.brought.pop(value, None)
        for node, devices in self.read_on.items():
            place_node(node, group=tuple(device for device in self.program.devices if device in devices))
        return len(list(self.program.transfers()))

    def _bring(self, value: Node, reader: Node) -> None:
        """Has a reader take a value as it lies on its devices."""
        home, group = device_of(value), members(self.program, reader)
        if assembles(value) and self.ever_written.isdisjoint(storages_of(value)):
            self.read_on[value].update(group)  # each gathers the parts for itself
        elif not set(group) <= set(placement_of(value).group):
            made = self._in_content(value, None if self.is_shared else group[0])
            reader.replace_input_with(value, made)
            if self.is_shared:
                self.read_on[made].update((home, *group))

    def _in_content(self, value: Node, device: Device | None) -> Node:
        """What brings a value to a device, or to a group, in its content now."""
        there = self.brought.setdefault(value, {})
        if device not in there:
            storages = storages_of(value)
            written = [self.last_write[storage] for storage in storages if storage in self.last_write]
            there[device] = self._made(value, device, max([self.behind[value], *written]))
            for storage in storages:
                self.of_memory.setdefault(storage, []).append(value)
        return there[device]

    def _made(self, value: Node, device: Device | None, behind: int) -> Node:
        """A node that brings a value elsewhere, and yields its like in new memory."""
        kind = value_of(value)
        assert isinstance(kind, TensorType), f"%{value.name} yields several tensors, which are brought one by one"
        name = f"{original(value).name}_on_{device or 'all'}"
        with self.program.graph.inserting_after(self.ends.get(behind, self.nodes[behind])):
            target = RESHARD if device is None else TRANSFER
            made = self.program.graph.create_node("call_function", target, (value,), {}, re.sub(r"\W", "_", name))
        self.behind[made], self.ends[behind] = behind, made
        made.kwargs = {"device": HERE}
        group = (device or device_of(value),)
        key = value, group[0], times_written(value, self.written)
        storage = self.memory[key] if key in self.memory else next(self.storages)
        made.meta["value"], made.meta["placement"] = replace(kind, storage=storage), Placement(group)
        return made
