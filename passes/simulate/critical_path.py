"""Which chain of work decides how long a call takes: nothing else makes it quicker, if it is made quicker alone.

It walks the clocks of the time line once more and notes of each piece of work (an operation, a load, a copy) which
pieces it began after. The longest path through that graph is as long as the call.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import groupby

from ...compiler.devices.device import Device
from ...compiler.devices.speeds import Speeds
from ...compiler.ir.program import Program
from ...compiler.ir.schedule import Await, Copy, Instruction, Lifetime, Load, Release, Step
from .timeline import ClockWalk

_ISSUING = "issuing"


@dataclass(frozen=True, slots=True)
class Stretch:
    """Work of one lane in the chain, without a break: a device (`cuda0`), its loads, or copies (`cuda0 to cuda1`)."""

    lane: str
    seconds: float


def critical_path(program: Program, speeds: Speeds) -> list[Stretch]:
    """The chain of work that is as long as a call of a scheduled program, in the order in which it is done.

    Of chains of one length it is the one of the work that comes first. Takes time in proportion to the instructions.
    Raises ValueError for a program that has no schedule.
    """
    import networkx as nx

    walk = _Causes(program, speeds)
    walk.walk()
    graph = nx.DiGraph()
    graph.add_nodes_from(range(-1, len(walk.work)))  # the beginning of the call, and each piece of work
    for number, piece in enumerate(walk.work):
        graph.add_edges_from(((one, number) for one in (-1, *piece.after)), seconds=piece.seconds)
    path = nx.dag_longest_path(graph, weight="seconds", topo_order=range(-1, len(walk.work)))
    pieces = [walk.work[number] for number in path if number >= 0]
    return [
        Stretch(lane, sum(piece.seconds for piece in run)) for lane, run in groupby(pieces, lambda piece: piece.lane)
    ]


@dataclass(slots=True)
class _Work:
    """A piece of work: the lane that does it, the pieces that it begins after, and its seconds."""

    lane: str
    after: list[int]
    seconds: float = 0.0


@dataclass
class _Causes(ClockWalk):
    """Clocks of which each knows the piece of work that it shows the end of.

    A clock is known as the device, lane, slot, load or copy that it is of, or as that of the host, which issues.
    """

    work: list[_Work] = field(default_factory=list)
    by: dict[Hashable, int | None] = field(default_factory=dict)
    begins_after: Sequence[Hashable] = ()
    awaited: Copy | Load | None = None

    def carry_out(self, one: Instruction | Step) -> None:
        """What an instruction does to the clocks, and to what they are known by."""
        if isinstance(one, Await):
            self.awaited = one.started
        super().carry_out(one)
        if isinstance(one, Release):
            self.by[one.load.device, one.load.slot] = self.by.get(one.load.device)

    def step(self, step: Step) -> None:
        """One operation begins after the one before it on the device, and after the host has issued it."""
        assert self.running is not None
        device = self.running.device
        start = max(self.computed[device], self.issued)
        self.by[device] = self.begin(str(device), (device, _ISSUING))
        super().step(step)
        self.work[-1].seconds = self.computed[device] - start

    def issue(self, device: Device) -> None:
        """The host goes on after what a device did, if it waits for that."""
        before = self.issued
        super().issue(device)
        if self.issued != before:
            self.by[_ISSUING] = self.by.get(device)

    def wait(self, device: Device, until: float) -> None:
        """A device goes on after what it has waited for, if that ended later than its own work."""
        if until > self.computed[device]:
            self.by[device] = self.by.get(self.awaited)
        super().wait(device, until)

    def copy(self, copy: Copy) -> None:
        """A copy begins after what made the value, and within a device it is work of that."""
        here, start = copy.source, self.computed[copy.source]
        self.begins_after = (here, _ISSUING)
        super().copy(copy)
        if copy.target == here:
            self.by[here] = self.begin(str(here), (here,))
            self.work[-1].seconds = self.computed[here] - start
        else:
            lane = f"{here} to {copy.target}"
            self.by[copy] = self.begin(lane, (lane,))
            self.work[-1].seconds = self.speeds.latency

    def load(self, load: Load) -> None:
        """A load begins after its slot was released."""
        self.begins_after = (_ISSUING, (load.device, load.slot))
        super().load(load)
        if load.lifetime is Lifetime.STAGE:
            self.by[load] = self.by[f"loads to {load.device}"]

    def take(self, lane: str, what: str, ready: float, seconds: float, shared: Mapping[str, float]) -> float:
        """A lane does one thing after another, and so does what others share, which is a piece of work for each."""
        own = self.begin(lane, (*self.begins_after, lane, *shared))
        self.work[own].seconds = seconds
        for one, its in shared.items():
            self.by[one] = self.begin(lane, (*self.begins_after, one))
            self.work[-1].seconds = its
        self.by[lane] = own
        return super().take(lane, what, ready, seconds, shared)

    def begin(self, lane: str, clocks: Sequence[Hashable]) -> int:
        """Notes a piece of work that begins when all of some clocks have come so far; returns its number."""
        known = {self.by.get(clock) for clock in clocks}
        self.work.append(_Work(lane, sorted(one for one in known if one is not None)))
        return len(self.work) - 1
