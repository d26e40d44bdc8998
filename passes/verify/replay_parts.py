"""The part of the replay that follows what is put together of boxes: the memory for it, and what lands there.

Memory is set aside once on each device that gets some of the value, of the sizes of that. What each device sends is
copied into its places there, once, and awaited before it is read; where it is freed, what has landed is forgotten. Each
step takes time in proportion to the devices that send something.
"""

from __future__ import annotations

from collections import defaultdict

from torch.fx import Node

from ...compiler.devices.device import Device
from ...compiler.ir.program import tensors_of
from ...compiler.ir.schedule import Copy, ValueRef
from ...compiler.ir.split import assembles, landings_of
from ...compiler.states.parts import members, senders
from .replay_weights import Broken
from .snapshot import UNKNOWN, Snapshot


class GatheredParts:
    """The boxes on their way, and those that have landed."""

    def __init__(self, snapshot: Snapshot) -> None:
        self.snapshot = snapshot
        self.landed: dict[tuple[Node, int], dict[Copy, bool]] = defaultdict(dict)  # on a place, whether it was awaited

    def allocate(self, value: ValueRef, device: Device, like: ValueRef | None) -> Broken:
        """Memory is set aside."""
        if not assembles(value.node):
            yield "land", f"{value} is not put together of parts"
        if device not in members(self.snapshot.program, value.node):
            yield "land", f"{value} is put together on devices of its own, not on {device}"
        if not _has_sizes(value.node, like):
            yield "land", f"the sizes of {value} are not those of {like or 'its type'}"

    def land(self, copy: Copy) -> Broken:
        """Boxes go into their places, to which they are then still on their way."""
        if copy.landings != landings_of(copy.value.node, copy.source, copy.target):
            boxes = " and ".join(map(str, copy.landings))
            yield "land", f"what {copy.source} sends of {copy.sent} to {copy.target} does not land in {boxes}"
        landed = self.landed[self._whole(copy)]
        if copy in landed:
            yield "copy", f"{copy.value} was sent from {copy.source} before"
        landed[copy] = copy.source == copy.target

    def wait(self, copy: Copy, device: Device) -> Broken:
        """What a device sends is awaited."""
        landed = self.landed[self._whole(copy)]
        if landed.get(copy, True) or device != copy.target:
            yield "wait", f"{copy.value} of {copy.source} is not on its way"
        landed[copy] = True

    def read(self, value: ValueRef, place: int) -> Broken:
        """A value is read on a device; all that comes there of it must have landed."""
        node = value.node
        if not assembles(node) or place == UNKNOWN:
            return
        there = {copy.source for copy, done in self.landed[node, place].items() if done}
        target = self.snapshot.program.devices[place]
        for device in senders(self.snapshot.program, node, target):
            if device not in there:
                yield "wait", f"the part of %{node.name} on {device} is needed, and has not landed"

    def forget(self, value: ValueRef, place: int) -> None:
        """A value is freed on a device, and with it what has landed in it."""
        self.landed.pop((value.node, place), None)

    def _whole(self, copy: Copy) -> tuple[Node, int]:
        return copy.value.node, self.snapshot.place(copy.target)


def _has_sizes(node: Node, like: ValueRef | None) -> bool:
    """Whether memory can be made in the sizes of another value as far as its own differ from call to call."""
    mine = tensors_of(node)
    if len(mine) != 1 or like is None:
        return len(mine) == 1 and all(isinstance(size, int) for size in mine[0].shape)
    theirs = tensors_of(like.node)
    if len(theirs) != 1 or len(theirs[0].shape) != len(mine[0].shape):
        return False
    both = zip(mine[0].shape, theirs[0].shape, strict=True)
    return all(isinstance(size, int) or size == other for size, other in both)
