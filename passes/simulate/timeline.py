"""How long a schedule takes, and when each device computes, loads and copies meanwhile; nothing is computed.

One walk over the instructions, in the order in which they take effect. Each device computes one operation after
another. Beside it a lane brings weights to it, one load after another in the order of the schedule, and the copies
from one device to another follow each other on a lane of their own. All copies out of a device share what it sends by,
and all into it what it receives by (`Speeds.taken`); devices of one root share their way to the host, and that from it:
each takes its seconds there, and has passed when all of these are over. What is copied can be read a latency later. A
load begins where it stands, as soon as its lane is free and the slot that it lands in was released: on a device that is
launched from the host that may be long before the operations that were issued earlier have run. On the host, and on
simulated devices, which compute as they are issued, it is not; but simulated devices of a group, which are issued from
a thread each, count as the cards that they stand for. Loads to devices that work at once take longer, as far as the
host's memory, or the one disk, has not the bandwidth for all of them.

What stays for the program is there already. What stays for a phase is counted apart (`Timeline.bringing`), for it comes
once and not in every step: to one device after another, or to those at once that are issued to from a thread each, but
from the one disk.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property

from torch.fx import Node

from ...compiler.devices.device import Device
from ...compiler.devices.speeds import Speeds
from ...compiler.ir.program import IN_PARTS, Program, tensors_of
from ...compiler.ir.schedule import Await, Copy, Instruction, Lifetime, Load, Release, Run, Step
from ...compiler.ir.split import bytes_sent, share_of
from ...compiler.spec.residency import Residency
from ...compiler.states.parts import pieces
from ..analysis.memory_needs import arriving
from .cost import OpCost, cost_of


@dataclass(frozen=True, slots=True)
class Span:
    """What a lane did from a second to another one: a run on a device, a load to it, or a copy between two."""

    lane: str
    what: str
    start: float
    end: float


@dataclass(frozen=True)
class Timeline:
    """The seconds of a call, what the lanes did meanwhile, and the seconds each device waited for loads or copies.

    ``bringing`` are the seconds of loading what stays for a phase, which the first call of a phase has besides.
    """

    seconds: float
    spans: tuple[Span, ...]
    waited: dict[Device, float]
    bringing: float

    def busy(self, lane: str) -> float:
        """The seconds in which a lane did something: `cuda0`, `loads to cuda0`, `cuda0 to cuda1`."""
        return sum(span.end - span.start for span in self.spans if span.lane == lane)


def timeline(program: Program, speeds: Speeds) -> Timeline:
    """The time line of one call of a scheduled program.

    Raises ValueError for a program that has no schedule.
    """
    walk = ClockWalk(program, speeds)
    walk.walk()
    return walk.ended()


@dataclass
class ClockWalk:
    """The clocks of all lanes while the instructions are walked through, in seconds since the call began."""

    program: Program
    speeds: Speeds
    issued: float = 0.0  # the host, which issues
    computed: defaultdict[Device, float] = field(
        default_factory=lambda: defaultdict(float)
    )  # when a device has run what was issued on it
    free: defaultdict[str, float] = field(default_factory=lambda: defaultdict(float))  # when a lane is free
    slots: defaultdict[tuple[Device, int], float] = field(default_factory=lambda: defaultdict(float))
    arrived: dict[Copy | Load, float] = field(default_factory=dict)
    waited: defaultdict[Device, float] = field(default_factory=lambda: defaultdict(float))
    from_host: defaultdict[Device, float] = field(default_factory=lambda: defaultdict(float))
    from_disk: float = 0.0  # of what stays for a phase
    spans: list[Span] = field(default_factory=list)
    running: Run | None = None
    began: float | None = None  # when it computed its first operation since it last waited

    def __post_init__(self) -> None:
        self.pieces = pieces(self.program)
        self.is_grouped = self.program.is_grouped

    def walk(self) -> None:
        """Carries out all instructions of the program; raises ValueError where it has no schedule."""
        if self.program.schedule is None:
            raise ValueError(f"{self.program.name} has no schedule yet: lower it first")
        for one in self.program.schedule.flat():
            self.carry_out(one)

    def carry_out(self, one: Instruction | Step) -> None:
        """What an instruction does to the clocks."""
        match one:
            case Run():
                self.end_run()
                self.running, self.began = one, None
            case Step():
                self.step(one)
            case Await(started, device):
                self.wait(device, self.arrived.get(started, 0.0))
            case Copy():
                self.copy(one)
            case Load():
                self.load(one)
            case Release(load):
                self.slots[load.device, load.slot] = self.computed[load.device]

    def ended(self) -> Timeline:
        """All that was seen, at the end of the call."""
        self.end_run()
        end = max((*self.computed.values(), *self.free.values(), *self.arrived.values()), default=0.0)
        return Timeline(end, tuple(self.spans), dict(self.waited), self.bringing())

    def bringing(self) -> float:
        """The seconds of loading what stays for a phase."""
        if len(self.from_host) < 2 or not self.program.works_at_once:
            return sum(self.from_host.values()) + self.from_disk
        return self.speeds.bringing(self.program.rig.host, self.from_host) + self.from_disk

    def end_run(self) -> None:
        """Notes the run that has ended, if one has."""
        self.pause()
        self.running = None

    def pause(self) -> None:
        """Notes what was computed of the run since it began, or since it waited."""
        run = self.running
        if run is not None and self.began is not None:
            end = self.computed[run.device]
            self.spans.append(Span(str(run.device), run.segment.title, self.began, end))
        self.began = None

    def step(self, step: Step) -> None:
        """One operation, on the device of the run that it is in."""
        assert self.running is not None
        device = self.running.device
        seconds = self.cost(step.node, device).seconds(self.speeds[device])
        start = max(self.computed[device], self.issued)
        self.began = start if self.began is None else self.began
        self.computed[device] = start + seconds
        self.issue(device)

    def cost(self, node: Node, device: Device) -> OpCost:
        """The cost of an operation, or of the part of it that a device has."""
        return cost_of(node).part(self.share(node, device))

    def share(self, node: Node, device: Device) -> float:
        """The share of a node's result that a device has."""
        return share_of(node, device)

    def issue(self, device: Device) -> None:
        """The host goes on; where it computes itself what it issues, when that is done, but in a thread a device."""
        if self.is_awaited(device):
            self.issued = max(self.issued, self.computed[device])

    def is_awaited(self, device: Device) -> bool:
        """Whether the host itself computes what it issues on a device, in the thread that issues all.

        Simulated devices of a group work at once, as the cards would whose speeds they are given.
        """
        if IN_PARTS in self.program.facts:
            return False
        is_card = device.is_simulated and self.speeds[device].label != self.speeds[self.program.rig.host].label
        return device.is_host or (device.is_simulated and not (self.is_grouped and is_card))

    def wait(self, device: Device, until: float) -> None:
        """A device waits for what a lane brings."""
        late = until - self.computed[device]
        if late > 0:
            if self.running is not None and self.running.device == device:
                self.pause()
            self.waited[device] += late
            self.computed[device] = until
        self.issue(device)

    def copy(self, copy: Copy) -> None:
        """A value goes to another device, when it has been made and the lane is free; within a device it is a write."""
        node = copy.sent.node
        nbytes = float(sum(arriving(tensor) for tensor in tensors_of(node)))
        if copy.landings:
            nbytes = bytes_sent(copy.value.node, copy.source, copy.target)
        if copy.source == copy.target:
            self.computed[copy.source] += 2 * nbytes / self.speeds[copy.source].bandwidth
            return
        made = max(self.computed[copy.source], self.issued)
        seconds = nbytes / self.speeds.crossing(copy.source, copy.target)
        shared = dict.fromkeys(self.speeds.taken(copy.source, copy.target), seconds)
        passed = self.take(f"{copy.source} to {copy.target}", str(copy.sent), made, seconds, shared)
        self.arrived[copy] = passed + self.speeds.latency

    def load(self, load: Load) -> None:
        """Weights come from where each rests, when the lane and the slot are free."""
        from_host, from_disk = self.loading(load)
        if load.lifetime is not Lifetime.STAGE:
            self.arrived[load] = 0.0
            if load.lifetime is Lifetime.PHASE:
                self.from_host[load.device] += from_host
                self.from_disk += from_disk
            return
        ready = max(self.issued, self.slots[load.device, load.slot])
        roots = dict.fromkeys(self.speeds.lanes(self.program.rig.host, load.device), from_host + from_disk)
        of_host, of_disk = self.longer
        seconds = from_host * of_host + from_disk * of_disk
        self.arrived[load] = self.take(f"loads to {load.device}", f"load {load.number}", ready, seconds, roots)

    @cached_property
    def longer(self) -> tuple[float, float]:
        """How many times as long loads for stages take as to a device alone: from the host's memory, and from disk."""
        if not self.program.works_at_once or self.program.schedule is None:
            return 1.0, 1.0
        of_host: defaultdict[Device, float] = defaultdict(float)
        of_disk: defaultdict[Device, float] = defaultdict(float)
        for one in self.program.schedule.flat():
            if isinstance(one, Load) and one.lifetime is Lifetime.STAGE:
                from_host, from_disk = self.loading(one)
                of_host[one.device] += from_host
                of_disk[one.device] += from_disk
        without_roots = replace(self.speeds, roots={})
        return without_roots.at_once(self.program.rig.host, of_host), without_roots.from_disk_at_once(of_disk)

    def loading(self, load: Load) -> tuple[float, float]:
        """The seconds in which weights come from the host's memory, and those in which others come from disk."""
        seconds = {False: 0.0, True: 0.0}
        for weight in (self.pieces[name][0] for name in load.weights):
            is_on_disk = self.program.residency.get(weight.whole) is Residency.DISK
            seconds[is_on_disk] += weight.nbytes / self.speeds.loading(load.device, is_on_disk)
        return seconds[False], seconds[True]

    def take(self, lane: str, what: str, ready: float, seconds: float, shared: Mapping[str, float]) -> float:
        """Takes a lane for some seconds, from when it and the work are ready, and what others share; returns the end.

        What is shared is taken for seconds of its own, as soon as it is free, so that nobody waits for it because of
        another one.
        """
        start = max(ready, *(self.free[one] for one in (lane, *shared)))
        self.free.update({one: max(ready, self.free[one]) + its for one, its in shared.items()})
        self.free[lane] = start + seconds
        self.spans.append(Span(lane, what, start, start + seconds))
        return start + seconds
