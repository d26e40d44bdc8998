"""Has devices that compute together send parts early, and compute others while these are on their way.

A model's code computes queries, then keys, then values, and attention, which reads all of them: the devices would wait
for what they exchange of keys and values. Computed first, these cross while queries are computed, or a feed-forward
part that lies beside attention. Each part is sent when it is made, not when all that its readers read is made.

It works on regions (`memory/regions.py`) one by one; regions that look alike, as the blocks of a model do, are ordered
once. The same operations read the same values: no bit changes, nor does what is sent. A schedule says what the order
takes: it stays where it is predicted to be quicker, on no device above what may be used and above what was needed
before; else parts are sent early in the order that was traced, or all stays as it was. Must run on a cut program.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from typing import ClassVar

from torch.fx import Node

from ...compiler.devices.device import Device
from ...compiler.devices.speeds import Speeds, speeds_of
from ...compiler.ir.program import Program, placement_of
from ...compiler.ir.split import EARLY, assembles, bytes_sent, share_of
from ...compiler.states.parts import members, sent
from ..infra.base import Change, Pass
from ..lowering.lower import Lower
from ..memory.order import moving, place_behind, put_behind, write_segments
from ..memory.regions import Constraints, Region, regions
from ..simulate.cost import cost_of
from ..simulate.memory import simulate
from ..simulate.timeline import timeline
from .overlap import Clock, Problem, clock_of, quicker_order

_DIGITS = 9  # of seconds: what takes as long to a nanosecond is ordered alike


@dataclass(frozen=True)
class Arrange(Pass):
    """Sends what devices exchange early, and computes it before what is not exchanged, where that is quicker."""

    name: ClassVar[str] = "arrange"
    keeps_values: ClassVar[bool] = True
    requires: ClassVar[frozenset[str]] = frozenset({"cut"})
    refuses: ClassVar[frozenset[str]] = frozenset({"scheduled"})

    def run(self, program: Program) -> Change:
        """Tries the other order, then the given one with parts sent early, by the schedules of both."""
        if program.is_sliced or program.symbols or not any(map(assembles, program.transfers())):
            return Change(0, "nodes in another place, for devices exchange nothing")
        given, facts, before = list(program.graph.nodes), program.facts, _Taken.of(program)
        for way in (put_exchanges_early, send_early):
            moved = way(program)
            if _Taken.of(program).is_better(before, program):
                return Change(moved, "nodes in another place, and parts are sent when they are made")
            place_behind(given, program.graph._root)
            write_segments(program)
            program.facts = facts
        return Change(0, "nodes in another place, for none is quicker")


@dataclass(frozen=True)
class _Taken:
    """What a program takes by its schedule: seconds, and bytes on each device."""

    seconds: float
    nbytes: dict[Device, int]

    @classmethod
    def of(cls, program: Program) -> _Taken:
        """Lowers a program, and forgets the schedule."""
        Lower().run(program)
        seconds = timeline(program, speeds_of(program.rig)).seconds
        found = cls(seconds, {device: usage.total for device, usage in simulate(program).items()})
        program.schedule = None
        return found

    def is_better(self, other: _Taken, program: Program) -> bool:
        """Whether it is quicker, and needs no more than there is, or than the other one does."""
        free = program.rig.free
        fits = all(nbytes <= max(free[device], other.nbytes[device]) for device, nbytes in self.nbytes.items())
        return fits and self.seconds < other.seconds


def send_early(program: Program) -> int:
    """Has a program send parts when they are made; returns how many nodes are in another place, which none is."""
    program.facts |= {EARLY}
    return 0


def put_exchanges_early(program: Program) -> int:
    """The same, and computes what is sent before what is not; returns how many nodes are in another place."""
    speeds, constraints, standing = speeds_of(program.rig), Constraints(program), moving(program)
    known: dict[Problem, list[int] | None] = {}
    walk, moved = _Walk(program, speeds), 0
    for region in _all_regions(program):
        problem = walk.problem(region, constraints.before(region.nodes))
        if problem not in known:
            known[problem] = quicker_order(problem) if len(region.nodes) > 2 else None
        order = known[problem] or range(len(region.nodes))
        if known[problem]:
            place_behind([region.nodes[number] for number in order], region.nodes[0].prev)
            moved += sum(number != place for place, number in enumerate(order))
        walk.take(region, clock_of(problem, order))
    if moved:
        put_behind(standing)
        write_segments(program)
    return moved + send_early(program)


class _Walk:
    """What operations take one after another on each group of devices, and when what was sent of them arrives."""

    def __init__(self, program: Program, speeds: Speeds) -> None:
        self.now: dict[tuple[Device, ...], float] = defaultdict(float)  # in seconds, as all that follows
        self.free: dict[tuple[Device, ...], float] = defaultdict(float)
        self.arrived: dict[Node, float] = {}  # of what was sent of each operation
        self.maker = dict(moving(program))
        self.seconds = {node: _longest(program, node, speeds) for node in program.ops()}
        self.sent: dict[Node, float] = {}
        for transfer, maker in self.maker.items():
            self.sent[maker] = self.sent.get(maker, 0.0) + _crossing(program, transfer, speeds)
            if maker in self.seconds and assembles(transfer):
                self.seconds[maker] += _landing(program, transfer, speeds)

    def problem(self, region: Region, before: tuple[tuple[int, ...], ...]) -> Problem:
        """The problem of ordering a region, as it is reached now."""
        numbers, group = {node: number for number, node in enumerate(region.nodes)}, _group_of(region)
        awaits, arriving = list[tuple[int, ...]](), list[float]()
        for node in region.nodes:
            makers = [self.maker[one] for one in node.all_input_nodes if one in self.maker]
            awaits.append(tuple(sorted({numbers[one] for one in makers if one in numbers})))
            late = (self.arrived[one] - self.now[group] for one in makers if one in self.arrived)
            arriving.append(round(max(0.0, *late, 0.0), _DIGITS))
        seconds = tuple(round(self.seconds[node], _DIGITS) for node in region.nodes)
        sent = tuple(round(self.sent.get(node, 0.0), _DIGITS) for node in region.nodes)
        busy = round(max(0.0, self.free[group] - self.now[group]), _DIGITS)
        return Problem(before, seconds, sent, tuple(awaits), tuple(arriving), busy)

    def take(self, region: Region, clock: Clock) -> None:
        """Goes on to the end of a region."""
        group = _group_of(region)
        now = self.now[group]
        for number, node in enumerate(region.nodes):
            if self.sent.get(node):
                self.arrived[node] = now + clock.arrived[number]
        self.now[group], self.free[group] = now + clock.now, now + clock.free


def _group_of(region: Region) -> tuple[Device, ...]:
    return placement_of(region.nodes[0]).group


def _all_regions(program: Program) -> Iterator[Region]:
    """All operations, in regions of which those of one or two nodes keep their order."""
    at_first = {region.nodes[0]: region for region in regions(program, of_groups=True)}
    inside = {node for region in at_first.values() for node in region.nodes}
    for node in program.ops():
        if node in at_first:
            yield at_first[node]
        elif node not in inside:
            yield Region((node,))


def _longest(program: Program, node: Node, speeds: Speeds) -> float:
    """The seconds of an operation on the device that takes longest."""
    whole = cost_of(node)
    return max(whole.part(share_of(node, one)).seconds(speeds[one]) for one in members(program, node))


def _crossing(program: Program, transfer: Node, speeds: Speeds) -> float:
    """The seconds for which something is on its way for a transfer, by what takes longest of what copies take."""
    lanes: dict[str, float] = defaultdict(float)
    for source, target, nbytes in sent(program, transfer):
        seconds = nbytes / speeds.crossing(source, target)
        for lane in speeds.taken(source, target):
            lanes[lane] += seconds
    return speeds.latency + max(lanes.values()) if any(lanes.values()) else 0.0


def _landing(program: Program, transfer: Node, speeds: Speeds) -> float:
    """The seconds in which devices write what they have themselves of what is put together."""
    return max(2 * bytes_sent(transfer, one, one) / speeds[one].bandwidth for one in members(program, transfer))
