"""The stages of a segment: the runs of nodes whose weights come and go together.

A segment whose weights stay on its device is one stage. Where weights rest elsewhere, a stage ends where a node reads a
weight of another block than the nodes before it, so that one block's weights are on the device at a time. Weights
outside of blocks are a block of their own, but small ones come along with the stage that reads them.

Where a device has no room for the weights of a block, its stages are finer: each has as many operations as read no more
than so many bytes together, one at least. A weight that is read through views comes with its readers then: no stage
ends between a view of a weight and what reads it.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from torch.fx import Node

from ...compiler.devices.device import Device
from ...compiler.ir.program import Program, tensors_of, weight_name
from ...compiler.ir.staging import aligned
from ...compiler.ir.weight import Weight
from ...compiler.states.parts import weight_on
from .replicated import SMALL


def most_together(room: int, least: int) -> int:
    """The most bytes of a fine stage on a device: half its room, so that one comes while one is read, or all of it.

    Args:
        room: bytes for weights that come and go.
        least: bytes of the largest stage where all are as fine as they can be.
    """
    return room // 2 if least <= room // 2 else max(room, 0)


@dataclass
class Stages:
    """Cuts the segments of a program into stages; ``most`` has the bytes of a fine stage, by device."""

    program: Program
    most: dict[Device, int] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self._block_of = self.program.block_of()
        self._of_weights = {tensor.storage for node in self.program.weight_nodes() for tensor in tensors_of(node)}

    def of(self, nodes: Sequence[Node], device: Device) -> list[tuple[Node, ...]]:
        """Consecutive nodes on a device, cut into stages; one pass over their operands."""
        if not self.program.residency:
            return [tuple(nodes)]
        found: list[list[Node]] = [[]]
        held: set[str] = set()
        nbytes = 0
        block: str | None = None
        for group in self._inseparable(nodes) if device in self.most else ([node] for node in nodes):
            staged = {one.name: one for node in group for one in self._staged(node, device)}
            read = [self._block_of.get(one.whole, "") for one in staged.values() if self._counts(one)]
            more = _more(staged, held)
            is_full = bool(held and more) and nbytes + more > self.most.get(device, math.inf)
            if is_full or (read and block is not None and set(read) != {block}):
                found.append([])
                held, nbytes, more = set(), 0, _more(staged, set())
            block = read[-1] if read else block
            held |= staged.keys()
            nbytes += more
            found[-1].extend(group)
        return [tuple(stage) for stage in found]

    def _staged(self, node: Node, device: Device) -> Iterator[Weight]:
        """The weights that a node reads and that come and go on its device."""
        for operand in node.all_input_nodes:
            if weight_name(operand):
                weight = weight_on(self.program, node, operand, device)
                if self.program.stages(weight, device):
                    yield weight

    def _counts(self, weight: Weight) -> bool:
        """Whether reading a weight may end a stage."""
        return weight.whole in self._block_of or weight.nbytes > SMALL

    def _inseparable(self, nodes: Sequence[Node]) -> Iterator[list[Node]]:
        """The nodes in groups between which a stage may end: from a view of a weight to its last reader.

        What is read outside of these nodes keeps its weight on the device, and holds nothing together.
        """
        place = {node: index for index, node in enumerate(nodes)}
        group: list[Node] = []
        last = -1
        for index, node in enumerate(nodes):
            group.append(node)
            if self._is_of_weight(node) and all(user in place for user in node.users):
                last = max(last, *(place[user] for user in node.users), index)
            if last <= index:
                yield group
                group = []

    def _is_of_weight(self, node: Node) -> bool:
        """Whether a node's result lies in the memory of a weight."""
        return any(tensor.storage in self._of_weights for tensor in tensors_of(node))


def _more(staged: Mapping[str, Weight], held: Collection[str]) -> int:
    """The bytes that some weights take of a slot beside those that it holds."""
    return sum(aligned(weight) for name, weight in staged.items() if name not in held)
