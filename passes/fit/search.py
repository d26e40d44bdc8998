"""Where all components of a pipeline run and rest: a mixed-integer linear program over ways to place each.

Variables
    for each component and each way to place it (`options.Option`) x, 0 or 1; for each phase and device the bytes L of
    values alive at most.

Objective, least
    the sum of x times the way's seconds a picture: calls times the seconds of a call, crossings and streaming included,
    and the bringing of what stays for the phase. Ties go to ways that take less memory and fewer devices
    (`_prices`).

Constraints
    one way for each component (`_one_each`); on each device and in each phase, the weights of all components that stay
    there, those that are there for the phase, and L are at most its budget, the host's too, in which weights rest
    (`_within_budgets`); L is at least what each component of the phase has alive there (`_covering_values`).

The ways are columns, and there is one for each budget under which a component may be placed. They are made as they are
needed: first for all of the budgets, for what is left when components are placed one after another by the partition
alone, and for the proportional split; then, for what a solution leaves of the budgets to each component, until no
component finds a better way (`_improved`). So a solution is never worse than the partition composed, nor than the
proportional split, for these are among the columns.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from ...compiler.spec.devices import Device
from .options import Machine, Option, option, options_of, proportional
from .workload import Budgets, Load

_ROUNDS = 4
_SECONDS = 2.0
_FINE = 64  # parts of a chain, when a way that was found is made finer


@dataclass(frozen=True)
class Solution:
    """A way for each component by name, and the seconds of a picture."""

    ways: Mapping[str, Option]

    @property
    def seconds(self) -> float:
        """The predicted seconds of a picture, without reading files."""
        return sum(way.seconds for way in self.ways.values())


def search(loads: Sequence[Load], machine: Machine, budgets: Budgets) -> Solution | None:
    """The ways of least seconds that fit together, or None where no ways do."""
    alike = {one: (budgets.of(one), machine.speeds[one], one == machine.host) for one in machine.devices}
    lists = machine.lists(alike)
    columns: dict[str, list[Option]] = {}
    for load in loads:
        columns[load.name] = list(options_of(load, machine, budgets, lists))
        columns[load.name] += filter(None, (proportional(load, machine, budgets, one) for one in _free(load, lists)))
    composed = compose(loads, machine, budgets, lists)
    for name, way in (composed.ways if composed else {}).items():
        columns[name].append(way)
    composed = composed if composed and fits(composed, budgets) else None
    best = _better(composed, solve(columns, budgets))
    for _ in range(_ROUNDS if best else 0):
        assert best is not None
        found = _improved(best, columns, loads, machine, budgets, lists)
        if found is None or found.seconds >= best.seconds - 1e-9:
            break
        best = found
    return best and _refined(best, loads, machine, budgets)


def _free(load: Load, lists: Iterable[tuple[Device, ...]]) -> list[tuple[Device, ...]]:
    """The lists of a proportional split of a component of which nothing was asked."""
    said = load.asked
    if said.devices or said.residency or said.shares or said.rows or said.tiled:
        return []
    return [one for one in lists if len(one) > 1]


def compose(
    loads: Sequence[Load], machine: Machine, budgets: Budgets, lists: Sequence[tuple[Device, ...]]
) -> Solution | None:
    """Components placed one after another, the largest first, each by its best way in what is left, if it has one."""
    ways: dict[str, Option] = {}
    for load in sorted(loads, key=lambda one: -one.nbytes):
        left = left_for(load, ways, budgets)
        best = min(options_of(load, machine, left, lists), key=lambda way: way.seconds, default=None)
        if best is None:
            return None
        ways[load.name] = best
    return Solution(ways)


def left_for(load: Load, ways: Mapping[str, Option], budgets: Budgets) -> Budgets:
    """What the ways of other components leave for one: on each device, in its phase and beside what stays.

    What would stay there for longer than its phase is checked when all are put together.
    """
    others = [way for name, way in ways.items() if name != load.name]

    def taken(device: Device) -> int:
        own = sum(way.comes.get(device, 0) for way in others if way.phase == load.phase)
        stays = sum(way.stays.get(device, 0) for way in others)
        return own + stays + (sum(way.host for way in others) if device == budgets.host else 0)

    return replace(budgets, devices={device: max(0, n - taken(device)) for device, n in budgets.devices.items()})


def _held(ways: Sequence[Option], device: Device) -> int:
    return sum(way.stays.get(device, 0) + way.comes.get(device, 0) for way in ways)


def _peak(ways: Sequence[Option], phase: str, device: Device) -> int:
    """The bytes on a device in a phase at most."""
    mine = [way for way in ways if way.phase == phase]
    live = max((way.live.get(device, 0) for way in mine), default=0)
    return _held(mine, device) + sum(way.stays.get(device, 0) for way in ways if way.phase != phase) + live


def peaks(solution: Solution, budgets: Budgets) -> dict[tuple[str, Device], int]:
    """The bytes on each device in each phase at most, the host's resting weights and its process included."""
    ways = list(solution.ways.values())
    phases = dict.fromkeys(way.phase for way in ways)
    resting = sum(way.host for way in ways) + budgets.process
    return {
        (phase, device): _peak(ways, phase, device) + (resting if device == budgets.host else 0)
        for phase in phases
        for device in budgets.devices
    }


def fits(solution: Solution, budgets: Budgets) -> bool:
    """Whether the ways fit together."""
    return all(nbytes <= budgets.devices[device] for (_, device), nbytes in peaks(solution, budgets).items())


def solve(columns: Mapping[str, Sequence[Option]], budgets: Budgets) -> Solution | None:
    """The program over some columns, by HiGHS; None if no ways fit together."""
    from scipy.optimize import Bounds, LinearConstraint, milp

    kept = {name: undominated(ways) for name, ways in columns.items()}
    if not all(kept.values()):
        return None
    ways = [way for some in kept.values() for way in some]
    places = [(phase, device) for phase in dict.fromkeys(way.phase for way in ways) for device in budgets.devices]
    model = _Model(ways, places, budgets)
    result = milp(
        model.prices(),
        constraints=[LinearConstraint(*rows) for rows in (model.one_each(), model.within(), model.covering())],
        integrality=[1] * len(ways) + [0] * len(places),
        bounds=Bounds(0, [1] * len(ways) + [np.inf] * len(places)),
        options={"time_limit": _SECONDS, "mip_rel_gap": 1e-6},
    )
    if result.x is None:
        return None
    return Solution({way.name: way for way, x in zip(ways, result.x, strict=False) if x > 0.5})


_UNIT = 2**20


class _Model:
    """The matrices of the program, in MiB: a column for each way, then one for the values of each phase and device."""

    def __init__(self, ways: Sequence[Option], places: Sequence[tuple[str, Device]], budgets: Budgets) -> None:
        self.ways, self.places, self.budgets = ways, places, budgets
        self.width = len(ways) + len(places)

    def prices(self) -> np.ndarray:
        """Seconds; a millionth of them for each GiB, and a thousandth for each device behind the first."""
        found = np.zeros(self.width)
        scale = max((way.seconds for way in self.ways), default=1.0)
        for index, way in enumerate(self.ways):
            held = sum(way.stays.values()) + sum(way.comes.values()) + way.host
            found[index] = way.seconds + scale * (1e-9 * held / 2**30 + 1e-7 * (len(way.devices) - 1))
        return found

    def one_each(self) -> tuple[np.ndarray, float, float]:
        """One way for each component."""
        names = list(dict.fromkeys(way.name for way in self.ways))
        rows = np.zeros((len(names), self.width))
        for index, way in enumerate(self.ways):
            rows[names.index(way.name), index] = 1
        return rows, 1, 1

    def within(self) -> tuple[np.ndarray, float, np.ndarray]:
        """On each device in each phase: what stays, what is there for the phase, what rests, and values."""
        rows = np.zeros((len(self.places), self.width))
        for row, (phase, device) in enumerate(self.places):
            for index, way in enumerate(self.ways):
                held = way.stays.get(device, 0) + (way.comes.get(device, 0) if way.phase == phase else 0)
                rows[row, index] = (held + (way.host if device == self.budgets.host else 0)) / _UNIT
            rows[row, len(self.ways) + row] = 1
        return rows, -np.inf, np.array([self.budgets.of(device) / _UNIT for _, device in self.places])

    def covering(self) -> tuple[np.ndarray, float, float]:
        """The values of each phase on each device are at least those of each of its components."""
        rows = []
        for place, (phase, device) in enumerate(self.places):
            for name in dict.fromkeys(way.name for way in self.ways if way.phase == phase):
                row = np.zeros(self.width)
                row[len(self.ways) + place] = 1
                for index, way in enumerate(self.ways):
                    if way.name == name:
                        row[index] = -way.live.get(device, 0) / _UNIT
                rows.append(row)
        return np.array(rows).reshape(-1, self.width), 0, np.inf


def undominated(ways: Sequence[Option]) -> list[Option]:
    """Ways of which none is at least as good as another one in seconds and in every kind of memory."""
    ways = list(dict.fromkeys(ways))
    if not ways:
        return []
    devices = sorted({device for way in ways for device in (*way.stays, *way.comes, *way.live)}, key=str)
    facts = np.array(
        [
            [way.seconds, way.host, len(way.devices)]
            + [some.get(device, 0) for some in (way.stays, way.comes, way.live) for device in devices]
            for way in ways
        ],
        dtype=float,
    )
    kept: list[int] = []
    for index in np.lexsort(facts.T[::-1]):
        if not any((facts[other] <= facts[index]).all() for other in kept):
            kept.append(int(index))
    return [ways[index] for index in kept]


def _improved(
    best: Solution,
    columns: dict[str, list[Option]],
    loads: Sequence[Load],
    machine: Machine,
    budgets: Budgets,
    lists: Sequence[tuple[Device, ...]],
) -> Solution | None:
    """The program with more columns: for each component those under what the others leave now."""
    for load in loads:
        left = left_for(load, best.ways, budgets)
        columns[load.name] += options_of(load, machine, left, lists)
    return solve(columns, budgets)


def _refined(best: Solution, loads: Sequence[Load], machine: Machine, budgets: Budgets) -> Solution:
    """Each way over several devices once more, with the chain in fine parts, where that is better."""
    ways = dict(best.ways)
    for load in loads:
        way = ways[load.name]
        if len(way.devices) > 1 and not (load.asked.shares or load.asked.rows):
            left = left_for(load, ways, budgets)
            finer = option(load, machine, left, way.devices, way.residency, way.tiled, _FINE)
            tried = {**ways, load.name: finer} if finer else ways
            if finer and finer.seconds <= way.seconds and fits(Solution(tried), budgets):
                ways = tried
    return Solution(ways)


def _better(one: Solution | None, other: Solution | None) -> Solution | None:
    found = [solution for solution in (one, other) if solution]
    return min(found, key=lambda solution: solution.seconds, default=None)
