"""The part of the replay that follows what transfers gather: memory for wholes, and the parts that land there.

A whole is allocated once on the device of its transfer, of the sizes of the value. Each part is copied into its place
there, once, and awaited before the whole is read; where the whole is freed, its parts are forgotten. Each step takes
time in proportion to the devices that have a part.
"""

from __future__ import annotations

from collections import defaultdict

from torch.fx import Node

from ...compiler.ir.program import tensors_of
from ...compiler.ir.schedule import Copy, ValueRef
from ...compiler.ir.split import gathers, members, part_of, source_of
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
        if not gathers(value.node):
            yield "land", f"{value} is no whole of parts"
        if self.snapshot.place(device) != self.snapshot.device[value.node]:
            yield "land", f"{value} is gathered on its own device, not on {device}"
        if not _has_sizes(value.node, like):
            yield "land", f"the sizes of {value} are not those of {like or 'its type'}"

    def land(self, copy: Copy) -> Broken:
        """A part goes into its place in the whole, of which it is then still on its way."""
        node, into = copy.value.node, copy.into
        assert into is not None
        columns = part_of(self.snapshot.program, source_of(node), copy.source) if gathers(node) else (0, 0)
        if columns != (into.start, into.start + into.length):
            yield "land", f"{copy.sent} of {copy.source} has columns {columns} of a whole, and lands in {into}"
        if copy in self.landed[node]:
            yield "copy", f"{copy.value} was sent from {copy.source} before"
        self.landed[node][copy] = copy.source == copy.target

    def wait(self, copy: Copy, device: Device) -> Broken:
        """A part is awaited."""
        if self.landed[copy.value.node].get(copy, True) or device != copy.target:
            yield "wait", f"{copy.value} of {copy.source} is not on its way"
        self.landed[copy.value.node][copy] = True

    def read(self, value: ValueRef) -> Broken:
        """A value is read; every part of a whole must have landed."""
        node = value.node
        if not gathers(node):
            return
        there = {copy.source for copy, done in self.landed[node].items() if done}
        for device in members(self.snapshot.program, source_of(node)):
            if device not in there:
                yield "wait", f"the part of %{node.name} on {device} is needed, and has not landed"

    def forget(self, value: ValueRef) -> None:
        """A whole is freed, and with it what has landed in it."""
        self.landed.pop(value.node, None)


def _has_sizes(node: Node, like: ValueRef | None) -> bool:
    """Whether a whole can be made in the leading sizes of another value, or in those of its type."""
    mine = tensors_of(node)
    if len(mine) != 1 or like is None:
        return len(mine) == 1 and all(isinstance(size, int) for size in mine[0].shape)
    theirs = tensors_of(like.node)
    return len(theirs) == 1 and theirs[0].shape[:-1] == mine[0].shape[:-1]
