"""The stages of a segment: the runs of nodes whose weights come and go together.

A segment whose weights stay on its device is one stage. Where weights rest elsewhere, a stage ends where a node reads a
weight of another block than the nodes before it, so that one block's weights are on the device at a time. Weights
outside of blocks are a block of their own, but small ones come along with the stage that reads them.
"""

from __future__ import annotations

from collections.abc import Container, Iterator, Mapping, Sequence

from torch.fx import Node

from ...compiler.ir.program import Program, weight_name
from ...compiler.ir.split import weight_on
from ...compiler.ir.weight import Weight
from ...compiler.spec.devices import Device
from .replicated import SMALL


def stages(
    program: Program, nodes: Sequence[Node], device: Device, block_of: Mapping[str, str]
) -> list[tuple[Node, ...]]:
    """Consecutive nodes on a device, cut into stages; one pass over their operands."""
    if not program.residency:
        return [tuple(nodes)]
    found: list[list[Node]] = [[]]
    current: str | None = None
    for node in nodes:
        staged = _staged(program, node, device)
        read = [block_of.get(weight.whole, "") for weight in staged if _counts(weight, block_of)]
        if read and current is not None and set(read) != {current}:
            found.append([])
        current = read[-1] if read else current
        found[-1].append(node)
    return [tuple(stage) for stage in found]


def _staged(program: Program, node: Node, device: Device) -> Iterator[Weight]:
    """The weights that a node reads and that come and go on its device."""
    for operand in node.all_input_nodes:
        if weight_name(operand):
            weight = weight_on(program, node, operand, device)
            if program.stages(weight, device):
                yield weight


def _counts(weight: Weight, blocks: Container[str]) -> bool:
    """Whether reading a weight may end a stage."""
    return weight.whole in blocks or weight.nbytes > SMALL
