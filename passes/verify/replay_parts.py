"""The part of the replay that follows what is gathered: memory for wholes, and the parts that land there.

A whole is allocated once on each device of its group, of the sizes of the value. Each part is copied into its place
there, once, and awaited before the whole is read; where the whole is freed, its parts are forgotten. Each step takes
time in proportion to the devices that have a part.
"""

from __future__ import annotations

from collections import defaultdict

from torch.fx import Node

from ...compiler.devices.device import Device
from ...compiler.ir.program import placement_of, tensors_of
from ...compiler.ir.schedule import Copy, Destination, ValueRef
from ...compiler.ir.split import gathers, members, part_of, source_of, split_of
from .replay_weights import Broken
from .snapshot import Snapshot


class GatheredParts:
    """The parts on their way into wholes, and those that have landed."""

    def __init__(self, snapshot: Snapshot) -> None:
        self.snapshot = snapshot
        self.landed: dict[tuple[Node, int], dict[Copy, bool]] = defaultdict(dict)  # on a place, whether it was awaited

    def allocate(self, value: ValueRef, device: Device, like: ValueRef | None) -> Broken:
        """Memory for a whole is set aside."""
        if not gathers(value.node):
            yield "land", f"{value} is no whole of parts"
        if device not in placement_of(value.node).group:
            yield "land", f"{value} is gathered on devices of its own, not on {device}"
        if not _has_sizes(value.node, like):
            yield "land", f"the sizes of {value} are not those of {like or 'its type'}"

    def land(self, copy: Copy) -> Broken:
        """A part goes into its place in the whole, of which it is then still on its way."""
        if copy.into != _place_of(copy):
            yield "land", f"{copy.sent} of {copy.source} is no part of a whole that lands in {copy.into}"
        landed = self.landed[self._whole(copy)]
        if copy in landed:
            yield "copy", f"{copy.value} was sent from {copy.source} before"
        landed[copy] = copy.source == copy.target

    def wait(self, copy: Copy, device: Device) -> Broken:
        """A part is awaited."""
        landed = self.landed[self._whole(copy)]
        if landed.get(copy, True) or device != copy.target:
            yield "wait", f"{copy.value} of {copy.source} is not on its way"
        landed[copy] = True

    def read(self, value: ValueRef, place: int) -> Broken:
        """A value is read on a device; every part of a whole must have landed there."""
        node = value.node
        if not gathers(node):
            return
        there = {copy.source for copy, done in self.landed[node, place].items() if done}
        for device in members(self.snapshot.program, source_of(node)):
            if device not in there:
                yield "wait", f"the part of %{node.name} on {device} is needed, and has not landed"

    def forget(self, value: ValueRef, place: int) -> None:
        """A whole is freed on a device, and with it what has landed in it."""
        self.landed.pop((value.node, place), None)

    def _whole(self, copy: Copy) -> tuple[Node, int]:
        return copy.value.node, self.snapshot.place(copy.target)


def _place_of(copy: Copy) -> Destination | None:
    """Where a part belongs in its whole; None for what is no part of one."""
    node = copy.value.node
    split = split_of(source_of(node))
    if not gathers(node) or split is None or copy.source not in placement_of(source_of(node)).group:
        return None
    start, stop = part_of(source_of(node), copy.source)
    return Destination(((split.axis, start, stop - start),))


def _has_sizes(node: Node, like: ValueRef | None) -> bool:
    """Whether a whole can be made in the leading sizes of another value, or in those of its type."""
    mine = tensors_of(node)
    if len(mine) != 1 or like is None:
        return len(mine) == 1 and all(isinstance(size, int) for size in mine[0].shape)
    theirs = tensors_of(like.node)
    return len(theirs) == 1 and theirs[0].shape[:-1] == mine[0].shape[:-1]
