"""The part of the replay that follows split values: memory for their wholes, and the parts that land there.

A whole is allocated once on the value's own device, of the sizes of the value. Each part is copied into its place
there, once, and awaited before the whole is read; where the whole is freed, its parts are forgotten. Each step takes
time in proportion to the devices that have a part.
"""

from __future__ import annotations

from collections import defaultdict

from torch.fx import Node

from ...compiler.ir.program import tensors_of
from ...compiler.ir.schedule import Copy, ValueRef
from ...compiler.ir.split import members, part_of, split_of
from ...compiler.spec.devices import Device
from .replay_weights import Broken
from .snapshot import Snapshot


class GatheredParts:
    """The parts on their way into wholes, and those that have landed."""

    def __init__(self, snapshot: Snapshot) -> None:
        self.snapshot = snapshot
        self.landed: dict[Node, dict[Copy, bool]] = defaultdict(dict)  # by copy, whether it was awaited

    def allocate(self, value: ValueRef, device: Device, like: ValueRef | None) -> Broken:
        """Memory for a whole is set aside."""
        if not split_of(value.node) or value != ValueRef(value.node):
            yield "land", f"{value} is no whole of parts"
        if self.snapshot.place(device) != self.snapshot.device[value.node]:
            yield "land", f"{value} is gathered on its own device, not on {device}"
        if not _has_sizes(value.node, like):
            yield "land", f"the sizes of {value} are not those of {like or 'its type'}"

    def land(self, copy: Copy) -> Broken:
        """A part goes into its place in the whole, of which it is then still on its way."""
        node, into = copy.value.node, copy.into
        assert into is not None
        columns = part_of(self.snapshot.program, node, copy.source) if split_of(node) else (0, 0)
        if into.value != ValueRef(node) or not copy.value.part or columns != (into.start, into.start + into.length):
            yield "land", f"{copy.value} of {copy.source} has columns {columns} of a whole, and lands in {into}"
        if self.snapshot.place(copy.target) != self.snapshot.device[node]:
            yield "land", f"{copy.value} is gathered on its own device, not on {copy.target}"
        if copy in self.landed[node]:
            yield "copy", f"{copy.value} was sent from {copy.source} before"
        self.landed[node][copy] = copy.source == copy.target

    def wait(self, copy: Copy, device: Device) -> Broken:
        """A part is awaited."""
        if self.landed[copy.value.node].get(copy, True) or device != copy.target:
            yield "wait", f"{copy.value} of {copy.source} is not on its way"
        self.landed[copy.value.node][copy] = True

    def read(self, value: ValueRef, place: int) -> Broken:
        """A value is read; every part of a whole must have landed."""
        node = value.node
        if not split_of(node) or value.part or place != self.snapshot.device[node]:
            return
        there = {copy.source for copy, done in self.landed[node].items() if done}
        for device in members(self.snapshot.program, node):
            if device not in there:
                yield "wait", f"the part of %{node.name} on {device} is needed, and has not landed"

    def forget(self, value: ValueRef, place: int) -> None:
        """A whole is freed, and with it what has landed in it."""
        if not value.part and place == self.snapshot.device[value.node]:
            self.landed.pop(value.node, None)


def _has_sizes(node: Node, like: ValueRef | None) -> bool:
    """Whether a whole can be made in the leading sizes of another value, or in those of its type."""
    mine = tensors_of(node)
    if len(mine) != 1 or like is None:
        return len(mine) == 1 and all(isinstance(size, int) for size in mine[0].shape)
    theirs = tensors_of(like.node)
    return len(theirs) == 1 and theirs[0].shape[:-1] == mine[0].shape[:-1]
