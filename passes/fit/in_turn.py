"""Layer splits through which the pictures of a call go in turn, as ways: while a device has one part, another the next.

A call that can be taken apart along its pictures (`batches.division`) takes as long as the last part needs to come
through all devices. Each part waits for the device and the link to it to be done with the part before, and for the
device before it to have done its own (`makespan`). So devices shall have about as much to do: blocks are given to them
in order, none of which has more than some seconds; of several limits the one of which the call ends first is taken.
Weights stay on devices, for they would come for each part.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate

from ...compiler.devices.device import Device
from ...compiler.spec.residency import Residency
from .machine import Machine
from .options import WHOLE, Option, as_option, problem_of
from .part_work import PartWork
from .partition import Problem, in_ranges
from .workload import Budgets, Load

COUNTS = (2, 4, 8)
"""In so many parts the pictures of a call are tried."""

_LIMITS = (1.0, 1.03, 1.1, 1.25, 1.5)
"""Times the least seconds of the device that has most, in which blocks are tried to be given out."""

_STEPS = 30  # of the search for the least


def options_in_turn(
    load: Load, machine: Machine, budgets: Budgets, lists: Sequence[tuple[Device, ...]], least: float
) -> Iterator[Option]:
    """The ways of a component on several devices through which parts go in turn, quicker than the ``least`` known.

    Where a number of parts was asked for, the quickest ways in so many, whatever else is quicker.
    """
    least = math.inf if asks_for_parts(load) else least
    several = [one for one in ([load.asked.devices] if load.asked.devices else lists) if len(one) > 1]
    for count in _counts(load) if several else ():
        for devices in several:
            if _bound(load, machine, devices, count) < least:
                key = "in turn", devices, budgets.rooms(devices), count
                found = load.once(machine, key, lambda: _find(load, machine, budgets, devices, count))  # noqa: B023
                if found is not None and found.seconds < least:
                    least = found.seconds
                    yield found


def asks_for_parts(load: Load) -> bool:
    """Whether the pictures of a component are to go through a layer split in a number of parts that was said."""
    return (load.asked.micro_batches or 1) > 1


def _counts(load: Load) -> Iterator[int]:
    """In how many parts the pictures of a component are tried."""
    asked = load.asked
    stays = asked.residency in (None, Residency.DEVICE)
    if load.work is None or not stays or asked.shares or asked.chunks > 1 or asked.tiled or load.work.is_rough:
        return
    if asked.micro_batches is None:
        yield from (one for one in COUNTS if one <= load.work.pictures)
    elif asks_for_parts(load) and load.work.pictures > 1:
        yield asked.micro_batches  # or in one a picture where there are fewer


def _bound(load: Load, machine: Machine, devices: Sequence[Device], count: int) -> float:
    """The least seconds of a picture, as if all devices were as quick as the quickest and had equal parts."""
    chain, times = load.called(False)
    alone = min(sum((rest, *parts)) for rest, parts in (load.seconds(chain, machine.speeds[one]) for one in devices))
    return times * alone * (count + len(devices) - 1) / (count * len(devices))


def _find(load: Load, machine: Machine, budgets: Budgets, devices: tuple[Device, ...], count: int) -> Option | None:
    """The quickest way on some devices in so many parts; None where it cannot be, or has no room."""
    assert load.work is not None
    works = load.work.in_parts(count)
    chain, counted = load.coarse(False, WHOLE)
    if not works or any(len(work.parts[0]) != 1 + len(chain.parts) for work, _ in works):
        return None
    problem = problem_of(load, chain, machine, budgets.less(load.more), devices, Residency.DEVICE)
    calls = []
    for number, (work, times) in enumerate(works):
        each = [_seconds(load, machine, device, work, (count, number)) for device in devices]
        calls.append((_InTurn.of(problem, each), times))
    best: Option | None = None
    for ranges in dict.fromkeys(balanced(problem, calls[0][0])):
        split = in_ranges(problem, ranges)
        seconds = sum(times * call.makespan(ranges) for call, times in calls)
        if split is not None and (best is None or seconds < best.seconds):
            way = as_option(load, chain, load.times, machine, devices, Residency.DEVICE, False, split, counted)
            best = replace(way, seconds=seconds, micro_batches=len(works[0][0].parts))
    return best if best is not None and len(best.devices) > 1 else None


def _seconds(
    load: Load, machine: Machine, device: Device, work: PartWork, number: tuple[int, int]
) -> list[list[float]]:
    """The seconds of each part on a device, outside of blocks and block by block; added up once for equal devices."""
    speed = machine.speeds[device]

    def add_up() -> list[list[float]]:
        return [[sum(times * cost.seconds(speed) for cost, times in costs) for costs in part] for part in work.parts]

    return load.once(machine, ("seconds of parts", speed, tuple(speed.flops.items()), number), add_up)


@dataclass(frozen=True)
class _InTurn:
    """The seconds of the parts of a call on each device.

    ``rests`` are those of each part outside of blocks, on the first device; ``ends`` has for each device and part the
    seconds of all blocks up to each. What crosses is the part of the whole call's that one part has.
    """

    problem: Problem
    rests: Sequence[float]
    ends: Mapping[tuple[int, int], Sequence[float]]

    @classmethod
    def of(cls, problem: Problem, each: Sequence[Sequence[Sequence[float]]]) -> _InTurn:
        """Those of each device by part: outside of blocks, then block by block."""
        ends = {
            (at, part): [0.0, *accumulate(blocks[1:])]
            for at, parts in enumerate(each)
            for part, blocks in enumerate(parts)
        }
        return cls(problem, [blocks[0] for blocks in each[0]], ends)

    def seconds(self, at: int, part: int, start: int, end: int) -> float:
        """Those of a part on a device that has some blocks."""
        return self.ends[at, part][end] - self.ends[at, part][start] + (0.0 if at else self.rests[part])

    def all_of(self, at: int, start: int, end: int) -> float:
        """Those of all parts."""
        return sum(self.seconds(at, part, start, end) for part in range(len(self.rests)))

    def makespan(self, ranges: Sequence[tuple[int, int]]) -> float:
        """The seconds from the start of a call to the end of its last part, which is back on the first device then."""
        problem, count = self.problem, len(self.rests)
        used = [(at, span) for at, span in enumerate(ranges) if at == 0 or span[1] > span[0]]
        free, end = dict.fromkeys(range(len(ranges)), 0.0), 0.0
        links: dict[tuple[int, int], float] = {}  # when each is free of the part before
        for part in range(count):
            ready, before = 0.0, 0
            for at, (start, stop) in used:
                nbytes = problem.pieces[start - 1].boundary if start else problem.rest.boundary
                if before != at:
                    ready = max(ready, links.get((before, at), 0.0)) + problem.crossing(before, at, nbytes // count)
                    links[before, at] = ready
                free[at] = ready = max(free[at], ready) + self.seconds(at, part, start, stop)
                before = at
            ready = max(ready, links.get((before, 0), 0.0))
            end = ready + problem.crossing(before, 0, problem.pieces[-1].boundary // count)
            links[before, 0] = end
        return end


def balanced(problem: Problem, call: _InTurn) -> Iterator[tuple[tuple[int, int], ...]]:
    """Ranges of blocks with which no device has more than some seconds to do, from the least that is possible on."""
    low, high = 0.0, max(call.all_of(at, 0, len(problem.pieces)) for at in range(len(problem.rooms)))
    if _within(problem, call, high) is None:
        return
    for _ in range(_STEPS):
        middle = (low + high) / 2
        low, high = (middle, high) if _within(problem, call, middle) is None else (low, middle)
    for times in _LIMITS:
        found = _within(problem, call, high * times)
        if found is not None:
            yield found


def _within(problem: Problem, call: _InTurn, limit: float) -> tuple[tuple[int, int], ...] | None:
    """As many blocks on each device in order as have room there and take no more seconds; None where some are left."""
    ranges, start = [], 0
    for at in range(len(problem.rooms)):
        end, resident, live = start, 0, 0 if at else problem.rest.live
        while end < len(problem.pieces):
            piece = problem.pieces[end]
            resident, live = resident + piece.nbytes + piece.stays, max(live, piece.live)
            if not problem.fits(at, resident, 0, live) or call.all_of(at, start, end + 1) > limit:
                break
            end += 1
        ranges.append((start, end) if end > start else (0, 0))
        start = end
    return tuple(ranges) if start == len(problem.pieces) else None
