"""The runs of nodes between cuts: consecutive nodes on one device, or of one group that shares them.

A run of a group ends also where the whole of what it has split is read: its parts are gathered first.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

from torch.fx import Node

from ...compiler.ir.program import Program
from ...compiler.ir.split import members, reads_part, split_of
from ...compiler.spec.devices import Device

Run = tuple[Device, tuple[Device, ...], list[Node]]
"""The device on which the values of a run are whole, the devices that run its nodes in turn, and the nodes."""


def runs(program: Program, place: Callable[[Node], Device]) -> Iterator[Run]:
    """All operations in order; ``place`` says the device on which each value is whole."""
    current: Run | None = None
    made: set[Node] = set()
    for node in program.ops():
        key = place(node), members(program, node) if split_of(node) else (place(node),)
        gathers = any(split_of(one) and one in made and not reads_part(node, one) for one in node.all_input_nodes)
        if current is None or current[:2] != key or gathers:
            if current is not None:
                yield current
            current, made = (*key, []), set()
        current[2].append(node)
        made.add(node)
    if current is not None:
        yield current
