"""The runs of nodes between cuts: consecutive nodes on one device, or of one group that shares them."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from torch.fx import Node

from ...compiler.devices.device import Device
from ...compiler.ir.program import Program, part_of
from ...compiler.ir.split import is_shared
from ...compiler.states.parts import members

Run = tuple[Device, tuple[Device, ...], list[Node]]
"""The main device of a run, the devices that run its nodes in turn, and the nodes."""


def runs(program: Program, place: Callable[[Node], Device], by_part: bool = False) -> Iterator[Run]:
    """All operations in order; ``place`` says the main device of each.

    With ``by_part`` a run is of one micro-batch; what is computed for all of them goes with the first.
    """
    current: Run | None = None
    part = 0
    for node in program.ops():
        key = place(node), members(program, node) if is_shared(node) else (place(node),)
        own = (part_of(node) or 0) if by_part else 0
        if current is None or current[:2] != key or part != own:
            if current is not None:
                yield current
            current, part = (*key, []), own
        current[2].append(node)
    if current is not None:
        yield current
