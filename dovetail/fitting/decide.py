"""Decides where the components of a traced pipeline run and rest, or says what does not fit and what would."""

from __future__ import annotations

import logging
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from typing import TypeVar

from ..compiler.devices.device import Device
from ..compiler.devices.measured_speeds import measured_host
from ..compiler.devices.rig import Rig
from ..compiler.devices.speeds import Speeds, speeds_of
from ..compiler.durations import seconds_text
from ..compiler.errors import DoesNotFitError
from ..compiler.ir.program import Program
from ..compiler.ir.weight import Weight
from ..compiler.spec.modes import QUICKEST
from ..compiler.units import format_bytes
from ..conventions.request import Request
from ..passes.fit.chain import REST, Chain, Part
from ..passes.fit.choices import Choice, choices, taken
from ..passes.fit.group_work import GroupWork
from ..passes.fit.lacking import lacking, problem_of
from ..passes.fit.machine import Kind, Machine
from ..passes.fit.options import Option
from ..passes.fit.plan import Plan, plan_of
from ..passes.fit.search import search
from ..passes.fit.solution import Solution
from ..passes.fit.workload import TRIES, Asked, Budgets, Load, Over, excess_of, foreseeing, taken_off
from ..passes.simulate.cost import OpCost
from ..passes.states.modes import picture_count
from ..runtime.devices.card_speeds import measured_cards
from .asked import asked_of, budgets_of
from .by_layers import searched
from .chains import CallOfPart, chain_by_parts, joined_chain, prepared
from .chosen import Quicker, forget, quicker, rough
from .others import Other

logger = logging.getLogger(__name__)

T = TypeVar("T")


@dataclass(frozen=True)
class TracedCall:
    """A program of a component, or of the part at a path of one, as it was traced; and how often a picture calls it."""

    component: str
    program: Program
    times: int = 1
    path: str = ""


@dataclass(frozen=True)
class Member:
    """A component of a pipeline: its role, its phase, the bytes of all its weights, and whether these are in files.

    ``weights`` are those of one that runs by its parts, by name, and ``own`` is what its own Python computes in a
    picture. So many calls of it are independent of each other as it has guidance ``parts``.
    """

    role: str
    phase: str
    nbytes: int
    in_files: bool = True
    weights: Mapping[str, Weight] = field(default_factory=dict)
    own: Mapping[OpCost, float] = field(default_factory=dict)
    parts: int = 1


def loads_of(members: Mapping[str, Member], calls: Sequence[TracedCall], request: Request) -> list[Load]:
    """The components as the search takes them, with what was asked of each; in as many chunks as was asked."""
    traces: dict[str, list[tuple[Program, float]]] = defaultdict(list)
    of_parts: dict[str, list[CallOfPart]] = defaultdict(list)
    for call in calls:
        traces[call.component].append((call.program, call.times))
        of_parts[call.component].append(CallOfPart(call.path, call.program, call.times))
    loads = []
    encoders = [name for name, one in members.items() if one.role == "te"]
    largest = max(encoders, key=lambda name: members[name].nbytes, default="")
    for name, member in sorted(members.items(), key=lambda item: _order(item[1].phase)):
        asked = asked_of(request, name, member.role)
        device = first_device(asked, (*request.rig.devices, request.rig.host))
        if member.weights and traces[name]:
            chain, times = chain_by_parts(name, member.weights, of_parts[name], member.own, device)
        else:
            chain, times = joined_chain(traces[name], asked.chunks, device) if traces[name] else (_uncalled(name), 0.0)
        if member.role == "te" and name != largest and name not in dict(request.backend.named):
            asked = replace(asked.by_layers, devices=asked.devices[:1], shares=())  # as `share_out` has it
        work = None
        if not member.weights:
            work = GroupWork(
                traces[name], partial(prepared, chunks=asked.chunks), request.granted, asked.mode, asked.shares,
                asked.chunks, has_short_terms=bool(request.terms_for(name, member.role)),
            )  # fmt: skip
        load = Load(
            name, member.role, member.phase, chain, times, None, member.nbytes, asked, member.in_files,
            parts=member.parts if all(picture_count(program) < 2 for program, _ in traces[name]) else 1,
        )  # fmt: skip
        loads.append(replace(load, work=work) if work else load)
    return loads


def first_device(asked: Asked, devices: Sequence[Device]) -> Device:
    """The device with whose kernels a component's values count: the first that was asked for, or that there is."""
    return (*asked.devices, *devices)[0]


def _order(phase: str) -> int:
    """Phases in the order of a picture, those of other names between conditioning and sampling."""
    return {"conditioning": 0, "sampling": 2, "decoding": 3}.get(phase.partition(" ")[0], 1)


def _uncalled(name: str) -> Chain:
    """A component that no call was traced of: weights and nothing else."""
    return Chain(name, Part(str(REST), 0, 0, 0, 0, ()), ())


@dataclass(frozen=True)
class Decision:
    """A plan, the seconds of the search for it, and what it was searched with.

    ``budgets`` are those of the search, ``granted`` those before earlier plans were found to exceed them. ``by_rows``
    are the components that are split so, whose time a search counts as that of a split by layers.
    """

    plan: Plan
    searched: float
    loads: tuple[Load, ...]
    machine: Machine
    budgets: Budgets
    solution: Solution
    granted: Budgets
    by_rows: tuple[str, ...] = ()

    def __repr__(self) -> str:
        return f"<Decision: {self.plan.line}; {self.solution.seconds:.3g} s>"

    def explained(self) -> Plan:
        """The plan with notes on why devices are used or not; a search for each of them, which knows of no rows."""
        return replace(self.plan, notes=self._compared[0]) if self._compared[0] else self.plan

    @property
    def others(self) -> tuple[Other, ...]:
        """The plans that these notes tell of, the quickest first; they are found with the notes."""
        return self._compared[1]

    @cached_property
    def _compared(self) -> tuple[tuple[str, ...], tuple[Other, ...]]:
        ways = self.solution.ways
        heavy = max(self.loads, key=lambda load: ways[load.name].seconds)
        if heavy.name in self.by_rows and not heavy.asked.chooses_mode:
            return (), ()
        loads = tuple(rough(load) if load.asked.chooses_mode else load for load in self.loads)
        of = self.solution, loads, self.machine, self.budgets
        others: list[Other] = []
        notes = (*why_used(*of, others), *why_not_used(*of, others))
        return notes, tuple(sorted(others, key=lambda one: one.seconds))

    @cached_property
    def choices(self) -> tuple[Choice, ...]:
        """What a picture would take in each mode, of the components whose mode was found."""
        found = tuple(choices(self.loads, self.solution, self.machine, self.budgets))
        forget(self.loads)
        return found

    @property
    def taken(self) -> tuple[Choice, ...]:
        """The ways that were taken of the components whose mode was found."""
        return tuple(taken(self.loads, self.solution))

    @cached_property
    def quicker(self) -> Quicker | None:
        """How much quicker a picture is under `auto`, where no mode was asked for."""
        return quicker(self.loads, self.solution, self.machine, self.budgets)


def decide(name: str, loads: Sequence[Load], request: Request, over: Over | None = None) -> Decision | DoesNotFitError:
    """The plan of least seconds; a refusal where none does what was asked within the budgets.

    The refusal says which component takes the space. What would fit is `refused.explained`.

    Args:
        name: of the pipeline, for messages.
        loads: its components.
        request: the rig, the budgets, and what was asked.
        over: by how many bytes a plan that was made before turned out to exceed a device when it was lowered, by
            component and device; so much more is taken to be alive there.
    """
    started = time.perf_counter()
    machine = machine_of(request)
    granted, _ = budgets_of(request)
    loads, budgets = foreseeing(loads, granted, over or {})
    loads, solution = searched(loads, machine, budgets)
    if solution is None:
        return DoesNotFitError(partial(_problem, name, tuple(loads), machine, budgets, request.rig))
    took = time.perf_counter() - started
    return Decision(plan_of(solution, loads, budgets), took, tuple(loads), machine, budgets, solution, granted)


def _problem(name: str, loads: Sequence[Load], machine: Machine, budgets: Budgets, rig: Rig) -> str:
    """The sentence of a refusal, for which what takes the space is searched."""
    total = {device: rig[device].total for device in machine.devices}
    return f"{name} does not fit: {problem_of(lacking(loads, machine, budgets), loads, budgets, total)}"


def tightened(attempt: Callable[[Over], T | DoesNotFitError]) -> T | DoesNotFitError:
    """What an attempt gives that is made anew while it exceeds a device, with so much more foreseen there.

    Args:
        attempt: decides and lowers; takes the bytes by which those before exceeded devices.

    A refusal is that of the last attempt that had numbers of devices that it exceeds, for those of a search within less
    than the budgets mean nothing to a person; else that of the first.
    """
    over: Counter[tuple[str, Device]] = Counter()
    exceeded: DoesNotFitError | None = None
    tries = 0
    while True:
        tries += 1
        found = attempt(over)
        if not isinstance(found, DoesNotFitError):
            return found
        if not found.over or tries == TRIES:
            return found if found.over else exceeded or found
        exceeded = found
        logger.info("the plan needs more than was foreseen, and is searched again: %s", str(found))
        over.update(taken_off(excess_of(found), tries, over))


def machine_of(request: Request) -> Machine:
    """The devices of a request with their speeds; this machine's host is measured once, where the rig is here."""
    rig = request.rig.with_device(request.rig.host)
    return Machine(rig.devices, speeds_here(rig), rig.host)


def speeds_here(rig: Rig) -> Speeds:
    """The speeds of a rig's devices; this machine's host and cards are measured once, where the rig is here."""
    return speeds_of(rig, measured_host() if rig.present else None, measured=measured_cards(rig))


def speeds_rehearsed(rig: Rig) -> Speeds:
    """The speeds at which a rig's devices compute on this machine: of simulated ones those of its processor."""
    speeds = speeds_here(rig)
    host = replace(speeds[rig.host], peer=None)
    return replace(
        speeds, devices={device: host if device.is_simulated else one for device, one in speeds.devices.items()}
    )


def why_used(
    solution: Solution,
    loads: Sequence[Load],
    machine: Machine,
    budgets: Budgets,
    plans: list[Other] | None = None,
) -> list[str]:
    """For the devices behind the first that the component of most seconds is on, what a picture would take without.

    Idle devices that are like one of them would take its place, and are left out with it. Of those that are alike, to
    which no other component was asked, or the same ones, the last one is tried. What is found is added to ``plans``.
    """
    heavy = max(loads, key=lambda load: solution.ways[load.name].seconds)
    used = {device for way in solution.ways.values() for device in way.devices}
    kinds = machine.kinds(budgets)
    behind: dict[tuple[Kind, tuple[str, ...]], list[Device]] = defaultdict(list)
    for device in () if heavy.asked.devices else solution.ways[heavy.name].devices[1:]:
        if device != machine.host:
            asked = tuple(load.name for load in loads if device in load.asked.devices)
            behind[kinds[device], asked].append(device)
    notes = []
    for (kind, _), devices in behind.items():
        idle = [one for one in machine.devices if one not in used and kinds.get(one) == kind]
        without = replace(budgets, devices={**budgets.devices, **dict.fromkeys((devices[-1], *idle), 0)})
        other = search(loads, machine, without) or search(_by_layers(loads), machine, without)
        longer = _longer(other.seconds / solution.seconds, "take about as long") if other else ""
        one_less = f"one of {joined(devices)}" if len(devices) > 1 else str(devices[0])
        others = f", and without {joined(sorted(idle, key=machine.devices.index))} in its place," if idle else ""
        notes.append(f"without {one_less}{others} {f'a picture would {longer}' if longer else 'nothing fits'}")
        if plans is not None and other is not None:
            plans.append(Other(f"without {one_less}{others}".removesuffix(","), other.seconds))
    return notes


def _by_layers(loads: Sequence[Load]) -> list[Load]:
    """The components as they are placed where no group is there for a mode that was asked for."""
    return [load.by_layers if load.asked.seeks_group else load for load in loads]


def why_not_used(
    solution: Solution,
    loads: Sequence[Load],
    machine: Machine,
    budgets: Budgets,
    plans: list[Other] | None = None,
) -> list[str]:
    """Of the devices but the host that have no part of what takes most seconds, what a picture would take if they had.

    Devices of which the same is to be said are in one line, and those that are alike are searched once. What is found
    is added to ``plans``.
    """
    used = {device for way in solution.ways.values() for device in way.devices}
    heavy = max(loads, key=lambda load: solution.ways[load.name].seconds)
    others = [one for one in machine.devices if one not in solution.ways[heavy.name].devices and one != machine.host]
    known: dict[tuple[Kind, bool], str] = {}
    kinds = machine.kinds(budgets)
    told: dict[tuple[bool, str], list[Device]] = defaultdict(list)
    for device in () if heavy.asked.devices else others:
        kind = kinds[device], device in used
        if kind not in known:
            other = _found_with(device, heavy, solution, loads, machine, budgets)
            known[kind] = _why(device, heavy, solution, other, budgets)
            if plans is not None and other is not None:
                plans.append(Other(_over(heavy, other.ways[heavy.name]), other.seconds))
        told[device in used, known[kind]].append(device)
    return [_said_of(devices, heavy.name, is_used, f"too {why}") for (is_used, why), devices in told.items()]


def _over(heavy: Load, way: Option) -> str:
    """Which devices a component is split over in another plan, and in which way."""
    return f"{heavy.name} over {joined(way.devices)}{f' {_how(way)}' if len(way.devices) > 1 else ''}"


def _how(way: Option) -> str:
    return "by layers" if way.mode == "layer" else f"by {way.mode}"


def _said_of(devices: Sequence[Device], heavy: str, is_used: bool, why: str) -> str:
    """Why devices have no part of a component, in one line."""
    names = joined(devices)
    over = "any of them" if len(devices) > 1 else "it"
    start = "" if is_used else f"{names} {'are' if len(devices) > 1 else 'is'} not used: "
    return f"{start}splitting {heavy} over {names if is_used else over} {why}"


def joined(devices: Sequence[Device]) -> str:
    """The names of devices in a sentence; of several that follow one another, the first and the last.

    >>> joined([Device("cuda", 1), Device("cuda", 2), Device("cuda", 3), Device("xpu", 0)])
    'cuda1-cuda3 and xpu0'
    """
    runs: list[list[Device]] = []
    for one in devices:
        follows = bool(runs) and runs[-1][-1] == replace(one, index=one.index - 1)
        runs = [*runs[:-1], [*runs[-1], one]] if follows else [*runs, [one]]
    names = [name for run in runs for name in ([f"{run[0]}-{run[-1]}"] if len(run) > 2 else list(map(str, run)))]
    return " and ".join(filter(None, (", ".join(names[:-1]), *names[-1:])))


def _found_with(
    device: Device, heavy: Load, solution: Solution, loads: Sequence[Load], machine: Machine, budgets: Budgets
) -> Solution | None:
    """The plan in which a component may have a further device; None where there is none."""
    devices = (*solution.ways[heavy.name].devices, device)
    opened = replace(heavy.asked.opened, devices=devices, mode=QUICKEST if heavy.asked.chooses_mode else "layer")
    return search([replace(one, asked=opened) if one is heavy else one for one in loads], machine, budgets)


def _why(device: Device, heavy: Load, solution: Solution, other: Solution | None, budgets: Budgets) -> str:
    """What a picture would take with a further device for a component, by the plan that was found so."""
    how = "" if heavy.asked.chooses_mode else "by layers "
    if other is None:
        return f"{how}does not fit in its {format_bytes(budgets.of(device))}"
    way = other.ways[heavy.name]
    if device not in way.devices:
        return f"{how}would be no faster"
    return f"{_how(way)} would {_longer(other.seconds / solution.seconds)}"


_ALIKE = 0.03
"""The part by which seconds of two plans differ that mean nothing: lowered, either may be the quicker one."""


def _longer(ratio: float, same: str = "be no faster") -> str:
    """How much longer a picture takes, by the ratio of two plans' seconds."""
    if ratio < 1 + _ALIKE:
        return same if ratio > 1 - _ALIKE else f"be {1 - ratio:.0%} faster"
    return f"take {seconds_text(ratio)} times as long" if ratio >= 2 else f"be {ratio - 1:.0%} slower"
