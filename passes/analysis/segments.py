"""The runs of nodes between cuts: consecutive nodes on one device, or of one group that shares them."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from torch.fx import Node

from ...compiler.devices.device import Device
from ...compiler.ir.program import Program
from ...compiler.ir.split import is_shared
from ...compiler.states.parts import members

Run = tuple[Device, tuple[Device, ...], list[Node]]
"""The main device of a run, the devices that run its nodes in turn, and the nodes."""


def runs(program: Program, place: Callable[[Node], Device]) -> Iterator[Run]:
    """All operations in order; ``place`` says the main device of each."""
    current: Run | None = None
    for node in program.ops():
        key = place(node), members(program, node) if is_shared(node) else (place(node),)
        if current is None or current[:2] != key:
            if current is not None:
                yield current
            current = (*key, [])
        current[2].append(node)
    if current is not None:
        yield current
