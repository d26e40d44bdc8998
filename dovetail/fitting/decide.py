"""Decides where the components of a traced pipeline run and rest, or says what does not fit and what would."""

from __future__ import annotations

import logging
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TypeVar

from ..compiler.errors import DoesNotFitError
from ..compiler.ir.program import Program
from ..compiler.spec.devices import Device, Rig
from ..compiler.spec.measured_speeds import measured_host
from ..compiler.spec.speeds import Speeds, speeds_of
from ..compiler.spec.units import format_bytes
from ..conventions.request import Request
from ..passes.fit.chain import REST, Chain, Part
from ..passes.fit.options import Machine
from ..passes.fit.plan import Plan, plan_of
from ..passes.fit.search import Solution, search
from ..passes.fit.ways_out import lacking, problem_of
from ..passes.fit.workload import TRIES, Asked, Budgets, Load, taken_off
from .asked import asked_of, budgets_of
from .chains import COUNTS, chains_in_chunks, joined_chain

logger = logging.getLogger(__name__)

T = TypeVar("T")


@dataclass(frozen=True)
class TracedCall:
    """A program of a component as it was traced, and how often a picture calls it."""

    component: str
    program: Program
    times: int = 1


@dataclass(frozen=True)
class Member:
    """A component of a pipeline: its role, its phase, the bytes of all its weights, and whether these are in files."""

    role: str
    phase: str
    nbytes: int
    in_files: bool = True


def loads_of(
    members: Mapping[str, Member], calls: Sequence[TracedCall], request: Request, counts: Sequence[int] = ()
) -> list[Load]:
    """The components as the search takes them, with what was asked of each.

    ``counts`` are numbers of chunks that may be tried of each beside what was asked.
    """
    traces: dict[str, list[tuple[Program, float]]] = defaultdict(list)
    for call in calls:
        traces[call.component].append((call.program, call.times))
    loads = []
    encoders = [name for name, one in members.items() if one.role == "te"]
    largest = max(encoders, key=lambda name: members[name].nbytes, default="")
    for name, member in sorted(members.items(), key=lambda item: _order(item[1].phase)):
        chain, times = joined_chain(traces[name]) if traces[name] else (_uncalled(name), 0.0)
        asked = asked_of(request, name, member.role)
        wanted = {*counts, *(COUNTS if asked.chunks is None else (asked.chunks,))} - {1}
        chunked = dict(chains_in_chunks(chain, traces[name], sorted(wanted)))
        if member.role == "te" and name != largest and name not in dict(request.backend.named):
            asked = replace(asked, devices=asked.devices[:1], shares=(), rows=False)  # as `share_out` has it
        given = member.nbytes, asked, member.in_files, chunked
        loads.append(Load(name, member.role, member.phase, chain, times, None, *given))
    return loads


def _order(phase: str) -> int:
    """Phases in the order of a picture, those of other names between conditioning and sampling."""
    return {"conditioning": 0, "sampling": 2, "decoding": 3}.get(phase.partition(" ")[0], 1)


def _uncalled(name: str) -> Chain:
    """A component that no call was traced of: weights and nothing else."""
    return Chain(name, Part(str(REST), 0, 0, 0, 0, ()), ())


@dataclass(frozen=True)
class Decision:
    """A plan, the seconds of the search for it, and what it was searched with.

    ``budgets`` are those of the search, ``granted`` those before earlier plans were found to exceed them.
    """

    plan: Plan
    searched: float
    loads: tuple[Load, ...]
    machine: Machine
    budgets: Budgets
    solution: Solution
    granted: Budgets

    def explained(self) -> Plan:
        """The plan with notes on why devices are used or not; a search for each of them."""
        of = self.solution, self.loads, self.machine, self.budgets
        return replace(self.plan, notes=(*why_used(*of), *why_not_used(*of)))


def decide(name: str, loads: Sequence[Load], request: Request, over: Mapping[Device, int] | None = None) -> Decision:
    """The plan of least seconds.

    Args:
        name: of the pipeline, for messages.
        loads: its components.
        request: the rig, the budgets, and what was asked.
        over: by how many bytes a plan that was made before turned out to exceed a device when it was lowered; so much
            less is used of it.

    Raises:
        DoesNotFitError: no plan does what was asked within the budgets; the message says which component takes the
            space. What would fit is `refused.explained`.
    """
    started = time.perf_counter()
    machine = machine_of(request)
    granted, _ = budgets_of(request)
    tight = {device: max(0, n - (over or {}).get(device, 0)) for device, n in granted.devices.items()}
    budgets = replace(granted, devices=tight)
    solution = search(loads, machine, budgets)
    if solution is None:
        total = {device: request.rig[device].total for device in machine.devices}
        lack = lacking(loads, machine, budgets)
        raise DoesNotFitError(f"{name} does not fit: {problem_of(lack, loads, budgets, total)}")
    searched = time.perf_counter() - started
    return Decision(plan_of(solution, loads, budgets), searched, tuple(loads), machine, budgets, solution, granted)


def tightened(attempt: Callable[[Mapping[Device, int]], T]) -> T:
    """What an attempt gives that is made anew while it exceeds a device, with so much less of that device.

    Args:
        attempt: decides and lowers; takes the bytes by which the attempts before exceeded each device.

    Raises DoesNotFitError: that of the last attempt that had numbers of devices that it exceeds, for those of a search
    within less than the budgets mean nothing to a person; else that of the first.
    """
    over: Counter[Device] = Counter()
    exceeded: DoesNotFitError | None = None
    tries = 0
    while True:
        tries += 1
        try:
            return attempt(over)
        except DoesNotFitError as error:
            if not error.over or tries == TRIES:
                raise (error if error.over else exceeded or error) from None
            exceeded = error
            logger.info("the plan needs more than was foreseen, and is searched again: %s", str(error))
            over.update(taken_off(error.over, tries))


def machine_of(request: Request) -> Machine:
    """The devices of a request with their speeds; this machine's host is measured once, where the rig is here."""
    rig = request.rig if request.rig.host in request.rig else request.rig.with_device(request.rig.host)
    return Machine(rig.devices, speeds_here(rig), rig.host)


def speeds_here(rig: Rig) -> Speeds:
    """The speeds of a rig's devices; this machine's host is measured once, where the rig is here."""
    return speeds_of(rig, measured_host() if rig.present else None)


def why_used(solution: Solution, loads: Sequence[Load], machine: Machine, budgets: Budgets) -> list[str]:
    """For each device behind the first that the component of most seconds is on, what a picture would take without."""
    heavy = max(loads, key=lambda load: solution.ways[load.name].seconds)
    notes = []
    for device in () if heavy.asked.devices else solution.ways[heavy.name].devices[1:]:
        without = replace(budgets, devices={**budgets.devices, device: 0})
        other = search(loads, machine, without) if device != machine.host else None
        said = f"a picture takes {_times(other, solution)}" if other else "nothing fits"
        notes += [f"{device} has a part of {heavy.name}: without it {said}"] if device != machine.host else []
    return notes


def why_not_used(solution: Solution, loads: Sequence[Load], machine: Machine, budgets: Budgets) -> list[str]:
    """For each device but the host that has no part of what takes most seconds, what a picture would take if it had."""
    used = {device for way in solution.ways.values() for device in way.devices}
    heavy = max(loads, key=lambda load: solution.ways[load.name].seconds)
    others = [one for one in machine.devices if one not in solution.ways[heavy.name].devices and one != machine.host]
    return [
        f"{device} {f'has no part of {heavy.name}' if device in used else 'is not used'}: "
        + _why(device, heavy, solution, loads, machine, budgets)
        for device in others
        if not heavy.asked.devices
    ]


def _why(
    device: Device, heavy: Load, solution: Solution, loads: Sequence[Load], machine: Machine, budgets: Budgets
) -> str:
    devices = (*solution.ways[heavy.name].devices, device)
    forced = [replace(one, asked=Asked(devices, chunks=one.asked.chunks)) if one is heavy else one for one in loads]
    other = search(forced, machine, budgets)
    way = other.ways[heavy.name] if other else None
    if other is None or way is None:
        free = format_bytes(budgets.of(device))
        return f"with a part of {heavy.name} in its {free} nothing fits"
    if device not in way.devices:
        return f"a picture takes as long or longer with a part of {heavy.name} there"
    return f"with a part of {heavy.name} there a picture takes {_times(other, solution)}"


def _times(other: Solution, solution: Solution) -> str:
    return f"{other.seconds / solution.seconds:.3g} times as long"
