"""What a call takes whose pictures go through devices in parts, in numbers: the costs of each part, block by block."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, replace

from ...compiler.devices.rig import Rig
from ...compiler.ir.program import Program, part_of
from ..batches.divide import write_parts
from ..batches.division import NotDivisible, division_of
from ..placement.place import blocks_of_nodes
from ..simulate.cost import OpCost, cost_of
from .chain import REST, Work


@dataclass(frozen=True)
class PartWork:
    """The costs of the parts of a call: of each those outside of blocks, then those of each block in order.

    What is computed once for all parts is of the first, as it is where they run in turn.
    """

    parts: tuple[tuple[Work, ...], ...]


def part_work(program: Program, count: int) -> PartWork | NotDivisible:
    """The costs of so many parts of a program whose blocks were found, which stays as it is; or why there are none."""
    copy = program.copy()
    found = division_of(copy, count)
    if isinstance(found, NotDivisible):
        return found
    write_parts(copy, found)
    of_block = {name: index for index, block in enumerate(copy.blocks) for name in block.weights}
    whole = replace(copy, home={}, rig=copy.rig if copy.devices else Rig.of(cpu=1))
    block = blocks_of_nodes(whole, of_block)
    costs = [[Counter[OpCost]() for _ in range(1 + len(copy.blocks))] for _ in range(found.count)]
    for node in copy.ops():
        cost = cost_of(node)
        if cost.flops or cost.read or cost.written:
            costs[part_of(node) or 0][block[node] - REST][cost] += 1
    return PartWork(tuple(tuple(tuple(some.items()) for some in part) for part in costs))
