"""Has the parts of a call follow one another through the devices: while one computes a part, another the part before.

Side by side, as they were written, the parts would change devices together, one device at work at a time. Here each
part keeps its order, and runs of it on one device are put in turn by list scheduling: of the runs that can begin, that
which begins first by the predicted seconds of all before it, of several the one of the earliest part. What is computed
for all parts goes with the first that reads it; what joins the parts comes last. Must run on a pinned program.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import ClassVar

from torch.fx import Node

from ...compiler.devices.device import Device
from ...compiler.devices.speeds import Speeds, speeds_of
from ...compiler.ir.aliasing import writes
from ...compiler.ir.program import IN_PARTS, Program, device_of, part_of, tensors_of
from ..infra.base import Change, Pass
from ..memory.order import place_behind
from ..simulate.cost import cost_of

_END = -1
"""The stream of what reads several parts."""


@dataclass(frozen=True)
class Interleave(Pass):
    """Puts the runs of all parts in the order in which devices come to compute them."""

    name: ClassVar[str] = "interleave"
    keeps_values: ClassVar[bool] = True
    requires: ClassVar[frozenset[str]] = frozenset({"pinned"})
    refuses: ClassVar[frozenset[str]] = frozenset({"cut"})

    def run(self, program: Program) -> Change:
        """Moves nodes; a program that is not in parts stays as it is."""
        if IN_PARTS not in program.facts:
            return Change(0, "runs in turn, for it is not in parts")
        streams = _streams(program, speeds_of(program.rig))
        order = list(_in_turn(streams))
        first = next(program.ops())
        place_behind([node for run in order for node in run.nodes], first.prev)
        return Change(len(order), "runs in turn")


@dataclass(eq=False)
class _Run:
    """Consecutive nodes of one part on a device, their seconds, and the runs that come before."""

    device: Device
    nodes: list[Node] = field(default_factory=list)
    seconds: float = 0.0
    after: dict[_Run, None] = field(default_factory=dict)


def _streams(program: Program, speeds: Speeds) -> Mapping[int, list[_Run]]:
    """The runs of each part, and of what joins them, in order."""
    streams: dict[int, list[_Run]] = defaultdict(list)
    made: dict[Node, tuple[int, _Run]] = {}
    writers: dict[int, _Run] = {}  # of memory, the last
    for node in program.ops():
        operands = [made[one] for one in node.all_input_nodes if one in made]
        stream = _stream_of(node, made)
        runs, device = streams[stream], device_of(node)
        if not runs or runs[-1].device != device:
            runs.append(_Run(device, after=dict.fromkeys(runs[-1:])))
        run = runs[-1]
        run.nodes.append(node)
        run.seconds += cost_of(node).seconds(speeds[device])
        written = (writers.get(tensor.storage, run) for one in node.all_input_nodes for tensor in tensors_of(one))
        run.after.update(dict.fromkeys(one for one in (*(each for _, each in operands), *written) if one is not run))
        writers.update(dict.fromkeys(writes(node), run))
        made[node] = stream, run
    return streams


def _stream_of(node: Node, made: Mapping[Node, tuple[int, _Run]]) -> int:
    """The part of a node; what is of none is of the first, but where it reads what parts have made."""
    part = part_of(node)
    if part is not None:
        return part
    reads_parts = any(part_of(one) is not None or made[one][0] == _END for one in node.all_input_nodes if one in made)
    return _END if reads_parts else 0


def _in_turn(streams: Mapping[int, list[_Run]]) -> Iterator[_Run]:
    """All runs in the order in which they begin."""
    waiting = {
        number: list(reversed(streams[number])) for number in sorted(streams, key=lambda one: (one == _END, one))
    }
    ended: dict[_Run, float] = {}
    free: dict[Device, float] = defaultdict(float)
    while any(waiting.values()):
        ready = [runs for runs in waiting.values() if runs and all(one in ended for one in runs[-1].after)]
        begins = [max((free[runs[-1].device], *(ended[one] for one in runs[-1].after))) for runs in ready]
        at = min(range(len(ready)), key=begins.__getitem__)
        run = ready[at].pop()
        ended[run] = free[run.device] = begins[at] + run.seconds
        yield run
