"""Cuts the graph into segments, once at each change of device, and puts in the transfers of the values that cross.

A segment is a maximal run of consecutive nodes on one device. A value that is read on another device is brought there
by a transfer, once, however many nodes and segments read it there. One whose memory is written between two readings is
brought once for each content that is read: behind the last write before that reading. In the place of several views
that crosses which they are views of, where that is no more bytes (``shared_bases.py``). Afterwards every node reads
values on its own device, transfers apart. Must run on a pinned program, once.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, ClassVar

from torch.fx import Node

from ...compiler.ir.aliasing import storages_of, writes
from ...compiler.ir.ops import REPLICATE, TRANSFER
from ...compiler.ir.program import (
    HERE,
    Placement,
    Program,
    Segment,
    device_of,
    place_node,
    tensors_of,
    value_of,
    weight_name,
)
from ...compiler.ir.split import members, original, reads_part, split_of
from ...compiler.ir.value import TensorType
from ...compiler.spec.devices import Device
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
            for index, (device, group, nodes) in enumerate(runs(program, device_of))
        )
        for segment in program.segments:
            for node in segment.nodes:
                place_node(node, segment=segment.index)
        count = _Transfers(program, memory).insert()
        return Change(max(len(program.segments) - 1, 0), f"cuts, {count} values cross")


class _Transfers:
    """The values that were brought to devices so far, in the content that they have at a place of the graph."""

    def __init__(self, program: Program, memory: Mapping[Key, int]) -> None:
        nodes = list(program.graph.nodes)
        inputs = sum(node.op == "placeholder" for node in nodes)
        self.program = program
        self.nodes = nodes
        self.storages = program.fresh_storages()
        self.memory = memory
        self.written: Counter[int] = Counter()
        self.wholes: dict[Node, Node] = {}  # of split values, where they were gathered
        self.brought: dict[Node, dict[Device, Node]] = {}
        self.replicas: dict[tuple[Node, ...], Node] = {}
        self.of_memory: dict[int, list[Node]] = {}  # the values that were brought, by the memory that they lie in
        self.last_write: dict[int, int] = {}  # to a piece of memory, by its place among the nodes
        # Behind which of the nodes each has its content: what is brought of it stands there. Inputs come first, all.
        self.behind = {node: max(place, inputs - 1) for place, node in enumerate(nodes)}
        self.ends: dict[int, Node] = {}  # what was put behind a node last

    def insert(self) -> int:
        """Has every node read values that lie where it runs; returns how many transfers that takes."""
        for place, node in enumerate(self.nodes):
            for value in node.all_input_nodes:
                if tensors_of(value) and not weight_name(value) and not reads_part(node, value):
                    self._bring(value, node)
            self.written.update(writes(node))
            for storage in writes(node):
                self.last_write[storage] = place
                for value in self.of_memory.pop(storage, ()):
                    self.brought.pop(value, None)
        return len(list(self.program.transfers()))

    def _bring(self, value: Node, reader: Node) -> None:
        """Has a reader take a value as it lies on its devices."""
        home, group = device_of(value), members(self.program, reader)
        if group == (home,) and not split_of(value):
            return
        whole = self._gathered(value) if split_of(value) else value
        first = sorted(group, key=home.__ne__)  # what a value is there, all else is a copy of
        copies = tuple(whole if device == home else self._on(whole, device) for device in first)
        reader.replace_input_with(value, copies[0] if len(copies) == 1 else self._replica(copies))

    def _gathered(self, value: Node) -> Node:
        """The whole of a split value, once: views and writes of the value are of that, and the parts lie apart."""
        if value not in self.wholes:
            made = self._transfer(value, device_of(value), self.behind[value])
            value.meta["value"], made.meta["value"] = value_of(made), value_of(value)
            self.wholes[value] = made
        return self.wholes[value]

    def _on(self, value: Node, device: Device) -> Node:
        """The transfer of a value to a device, in its content now."""
        there = self.brought.setdefault(value, {})
        if device not in there:
            storages = storages_of(value)
            written = [self.last_write[storage] for storage in storages if storage in self.last_write]
            there[device] = self._transfer(value, device, max([self.behind[value], *written]))
            for storage in storages:
                self.of_memory.setdefault(storage, []).append(value)
        return there[device]

    def _transfer(self, value: Node, device: Device, behind: int) -> Node:
        """A transfer of a value, which yields its like in new memory."""
        kind = value_of(value)
        assert isinstance(kind, TensorType), f"%{value.name} yields several tensors, which are brought one by one"
        made = self._add(f"{original(value).name}_on_{device}", TRANSFER, (value,), behind)
        made.kwargs = {"device": HERE}
        key = value, device, times_written(value, self.written)
        storage = self.memory[key] if key in self.memory else next(self.storages)
        made.meta["value"], made.meta["placement"] = replace(kind, storage=storage), Placement(device)
        return made

    def _replica(self, copies: tuple[Node, ...]) -> Node:
        """A value that lies on several devices, of which these are the copies."""
        if copies not in self.replicas:
            behind = max(self.behind[one] for one in copies)
            made = self._add(f"{original(copies[0]).name}_replicated", REPLICATE, (list(copies),), behind)
            made.meta["value"], made.meta["placement"] = value_of(copies[0]), Placement(device_of(copies[0]))
            self.replicas[copies] = made
        return self.replicas[copies]

    def _add(self, name: str, target: Any, args: tuple[Any, ...], behind: int) -> Node:
        """A node behind another one, and behind all that was put there before."""
        with self.program.graph.inserting_after(self.ends.get(behind, self.nodes[behind])):
            made = self.program.graph.create_node("call_function", target, args, name=re.sub(r"\W", "_", name))
        self.behind[made], self.ends[behind] = behind, made
        return made
