"""Where all components of a pipeline run and rest: a mixed-integer linear program over ways to place each.

Variables
    for each component and each way to place it (`options.Option`) x, 0 or 1; for each phase and device the bytes L of
    values alive at most.

Objective, least
    the sum of x times the way's seconds a picture: calls times the seconds of a call, crossings and streaming included,
    and the bringing of what stays for the phase. Of the plans that take at most a five-hundredth more, the simplest is
    taken: the program is solved once more with these seconds as a constraint (`_Model.burdens`). Where modes are to be
    found, one that takes at most a fiftieth more and has fewer devices is taken before it.

Constraints
    one way for each component (`one_each`); on each device and in each phase, the weights of all components that stay
    there, those that are there for the phase, and L are at most its budget, the host's too, in which weights rest
    (`within`), and so are those of the devices together that share the host's memory (`together`); L is at least what
    each component of the phase has alive there (`covering`).

The ways are columns, and there is one for each budget under which a component may be placed. They are made as they are
needed: first for all of the budgets, for what the quickest way of a component under each mode leaves to others, where
its mode is to be found, for what is left when components are placed one after another by the partition alone, and for
the proportional split; then, for what a solution leaves of the budgets to each component, until no
component finds a better way. So a solution is never worse than the partition composed, nor than the
proportional split, for these are among the columns.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property

import numpy as np

from ...compiler.devices.device import Device
from ...compiler.spec.residency import Residency
from .groups import MODES, group_options, groups_of, quick_options
from .in_turn import asks_for_parts, options_in_turn
from .machine import Machine
from .options import Option, option, options_of, proportional
from .workload import Budgets, Load

SLACK = 1.002
"""How much longer than the least a simpler plan may take."""

SPARED = 1.02
"""How much longer than the least a plan may take that leaves devices out, where modes are to be found."""

ALONE, LAYER = "one device", "layer"
"""How a component is split that is under no mode."""

TRIFLE = 0.01
"""Components that take no more of a picture than this together are placed on one device or by layers, under no mode."""

_ROUNDS = 4
_NODES = 10_000  # of the solver's tree: a limit that is no time, so that equal input gives an equal plan
_FINE = 64  # parts of a chain, when a way that was found is made finer


@dataclass(frozen=True)
class Solution:
    """A way for each component by name, and the seconds of a picture."""

    ways: Mapping[str, Option]

    @property
    def seconds(self) -> float:
        """The predicted seconds of a picture, after all was loaded."""
        return sum(way.seconds for way in self.ways.values())


def search(
    loads: Sequence[Load], machine: Machine, budgets: Budgets, only: Mapping[str, str] | None = None
) -> Solution | None:
    """The ways of least seconds that fit together, or None where no ways do.

    Of components whose mode is to be found those in ``only`` are split so alone, by name: `ALONE`, `LAYER` or a mode.
    """
    groups = groups_of(machine, budgets) if any(load.asked.seeks_group for load in loads) else ()
    trial = Trial(loads, machine, budgets, machine.lists(budgets), places_of(loads, budgets), groups, only or {})
    columns: dict[str, list[Option]] = {}
    for load in loads:
        columns[load.name] = list(trial.options(load, budgets))
        columns[load.name] += filter(None, (proportional(load, machine, budgets, one) for one in trial.several(load)))
    for load in loads:
        for name, others in _beside_modes(trial, load, columns[load.name]):
            columns[name] += others
    composed = compose(trial)
    for name, way in (composed.ways if composed else {}).items():
        columns[name].append(way)
    best = _better(composed if composed and fits(composed, budgets) else None, solve(columns, budgets))
    for _ in range(_ROUNDS if best else 0):
        assert best is not None
        for load in loads:
            columns[load.name] += trial.options(load, left_for(load, best.ways, budgets))
        found = solve(columns, budgets)
        if found is None or found.seconds >= best.seconds * (1 - 1e-4):
            break
        best = found
    if best is None:
        return None
    simple = _refined(solve(columns, budgets, best.seconds * SLACK) or best, loads, machine, budgets)
    if any(load.asked.chooses_mode for load in loads):
        spared = solve(columns, budgets, best.seconds * SPARED)
        return _on_fewer(simple, spared and _refined(spared, loads, machine, budgets))
    return simple


def _on_fewer(one: Solution, other: Solution | None) -> Solution:
    """A solution, or another one that hardly takes longer, where that has fewer devices compute."""
    if other is None or other.seconds > one.seconds * SPARED:
        return one
    counts = [sum(len(way.devices) for way in some.ways.values()) for some in (one, other)]
    return other if counts[1] < counts[0] else one


def _beside_modes(trial: Trial, load: Load, ways: Sequence[Option]) -> Iterator[tuple[str, list[Option]]]:
    """The ways of other components beside the quickest way of one under each mode, where its mode is to be found.

    The best of all ways may leave others the room that a mode would take, in which nothing of it is tried again.
    """
    if not load.asked.chooses_mode or load.name in trial.trifles:
        return
    quickest = {way.mode: way for way in sorted(ways, key=lambda one: -one.seconds) if way.mode != LAYER}
    for way in quickest.values():
        for other in trial.loads:
            if other is not load:
                yield other.name, list(trial.options(other, left_for(other, {load.name: way}, trial.budgets)))


@dataclass(frozen=True)
class Trial:
    """What a search is about: components, devices, budgets, the lists of devices to try, and where weights may rest.

    ``groups`` are tried for components that devices are to compute together.
    """

    loads: Sequence[Load]
    machine: Machine
    budgets: Budgets
    lists: Sequence[tuple[Device, ...]]
    places: Sequence[Residency]
    groups: Sequence[tuple[Device, ...]] = ()
    only: Mapping[str, str] = field(default_factory=dict)

    def options(self, load: Load, budgets: Budgets) -> Iterator[Option]:
        """The ways to place a component under some budgets: over groups where a mode was asked for that is of these."""
        if not load.asked.seeks_group:
            yield from options_of(load, self.machine, budgets, self.lists, self.places)
            return
        if load.asked.chooses_mode:
            yield from self._quickest(load, budgets)
            return
        yield from group_options(load, self.machine, budgets, self.groups, self.places)
        if load.asked.may_be_alone:
            alone = [one for one in self.lists if len(one) == 1]
            yield from options_of(load.by_layers, self.machine, budgets, alone, self.places)

    def _quickest(self, load: Load, budgets: Budgets) -> Iterator[Option]:
        """The ways on one device and by layers, and those under modes, but for trifles.

        Where a number of micro-batches was asked for, ways by layers that are not in so many are left out, if any is.
        """
        least, only = math.inf, self.only.get(load.name, "")
        lists = [one for one in self.lists if only in ("", _kind(one))]
        in_parts = list(self._in_parts(load, budgets)) if only in ("", LAYER) else []
        yield from in_parts
        for way in options_of(load.by_layers, self.machine, budgets, lists, self.places):
            is_whole = len(way.devices) > 1 and way.residency is Residency.DEVICE
            if only in ("", LAYER if load.asked.devices else _kind(way.devices)) and not (in_parts and is_whole):
                least = min(least, way.seconds if way.host <= budgets.of(budgets.host) else math.inf)
                yield way
        if load.name in self.trifles and not only:
            return
        modes = [mode for mode in MODES if only in ("", mode)]
        for way in quick_options(load, self.machine, budgets, self.groups, self.places, modes, least):
            least = min(least, way.seconds if way.host <= budgets.of(budgets.host) else math.inf)
            yield way
        if only in ("", LAYER) and not in_parts:
            yield from options_in_turn(load, self.machine, budgets, self.lists, least)

    def _in_parts(self, load: Load, budgets: Budgets) -> Iterator[Option]:
        """The ways by layers in as many micro-batches as were asked for, if they were."""
        if asks_for_parts(load):
            yield from options_in_turn(load, self.machine, budgets, self.lists, math.inf)

    @cached_property
    def trifles(self) -> frozenset[str]:
        """The components of which the quickest mode is not looked for: all of them together take next to nothing."""
        least: dict[str, float] = {}
        for load in self.loads:
            some = options_of(load.by_layers, self.machine, self.budgets, self.lists, self.places)
            least[load.name] = min((way.seconds for way in some), default=math.inf)
        most, found = TRIFLE * sum(one for one in least.values() if one < math.inf), []
        for name, seconds in sorted(least.items(), key=lambda one: one[1]):
            most -= seconds
            if most < 0:
                break
            found.append(name)
        return frozenset(found) if len(self.loads) > 1 else frozenset()

    def several(self, load: Load) -> list[tuple[Device, ...]]:
        """The lists of a proportional split of a component of which nothing was asked."""
        said = load.asked
        is_together = said.seeks_group and not said.chooses_mode
        is_together |= self.only.get(load.name, LAYER) != LAYER
        if said.devices or said.residency or said.shares or is_together or said.tiled:
            return []
        if said.chooses_mode and any(self._in_parts(load, self.budgets)):
            return []
        return [one for one in self.lists if len(one) > 1]


def _kind(devices: Sequence[Device]) -> str:
    return LAYER if len(devices) > 1 else ALONE


def places_of(loads: Sequence[Load], budgets: Budgets) -> list[Residency]:
    """Where weights may rest: on disk only where the host's memory may not have all of them."""
    has_room = sum(load.nbytes for load in loads) + max(load.chain.live for load in loads) <= budgets.of(budgets.host)
    return [Residency.DEVICE, Residency.HOST, *([] if has_room else [Residency.DISK])]


def compose(trial: Trial) -> Solution | None:
    """Components placed one after another, the largest first, each by its best way in what is left, if it has one."""
    ways: dict[str, Option] = {}
    for load in sorted(trial.loads, key=lambda one: -one.nbytes):
        left = left_for(load, ways, trial.budgets)
        best = min(trial.options(load, left), key=lambda way: way.seconds, default=None)
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

    left = {device: max(0, n - taken(device)) for device, n in budgets.devices.items()}
    together = max(0, budgets.devices.get(budgets.host, 0) - sum(map(taken, budgets.together)))
    return replace(
        budgets, devices={one: min(n, together) if one in budgets.together else n for one, n in left.items()}
    )


def _held(ways: Sequence[Option], device: Device) -> int:
    return sum(way.stays.get(device, 0) + way.comes.get(device, 0) for way in ways)


def _peak(ways: Sequence[Option], phase: str, device: Device) -> int:
    """The bytes on a device in a phase at most."""
    mine = [way for way in ways if way.phase == phase]
    live = max((way.live.get(device, 0) for way in mine), default=0)
    return _held(mine, device) + sum(way.stays.get(device, 0) for way in ways if way.phase != phase) + live


def peaks(solution: Solution, budgets: Budgets) -> dict[tuple[str, Device], int]:
    """The bytes on each device in each phase at most, the host's resting weights included."""
    ways = list(solution.ways.values())
    phases = dict.fromkeys(way.phase for way in ways)
    resting = sum(way.host for way in ways)
    return {
        (phase, device): _peak(ways, phase, device) + (resting if device == budgets.host else 0)
        for phase in phases
        for device in budgets.devices
    }


def fits(solution: Solution, budgets: Budgets) -> bool:
    """Whether the ways fit together."""
    each = peaks(solution, budgets)
    shared: Counter[str] = Counter()
    for (phase, device), nbytes in each.items():
        if device in budgets.together:
            shared[phase] += nbytes
    alone = all(nbytes <= budgets.devices[device] for (_, device), nbytes in each.items())
    return alone and max(shared.values(), default=0) <= budgets.devices.get(budgets.host, 0)


def solve(columns: Mapping[str, Sequence[Option]], budgets: Budgets, seconds: float | None = None) -> Solution | None:
    """The program over some columns, by HiGHS; None if no ways fit together.

    With ``seconds`` it is the simplest solution that takes no longer.
    """
    from scipy.optimize import Bounds, LinearConstraint, milp

    kept = {name: undominated(ways) for name, ways in columns.items()}
    if not all(kept.values()):
        return None
    ways = [way for some in kept.values() for way in some]
    places = [(phase, device) for phase in dict.fromkeys(way.phase for way in ways) for device in budgets.devices]
    model = _Model(ways, places, budgets)
    rows = [model.one_each(), model.within(), model.covering(), *([model.together()] if budgets.together else [])]
    rows += [] if seconds is None else [(model.seconds(), -np.inf, seconds)]
    result = milp(
        model.seconds() if seconds is None else model.burdens(),
        constraints=[LinearConstraint(*one) for one in rows],
        integrality=[1] * len(ways) + [0] * len(places),
        bounds=Bounds(0, [1] * len(ways) + [np.inf] * len(places)),
        options={"node_limit": _NODES, "mip_rel_gap": 1e-9},
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

    def seconds(self) -> np.ndarray:
        """The seconds of each way."""
        return np.array([way.seconds for way in self.ways] + [0.0] * len(self.places))

    def burdens(self) -> np.ndarray:
        """What a way is to a person: each device behind the first, weights that rest elsewhere, tiles, the host.

        Ties go to the first device of the rig, and to less memory.
        """
        order = {device: index for index, device in enumerate(self.budgets.devices)}
        found = np.zeros(self.width)
        for index, way in enumerate(self.ways):
            moved = way.residency is not Residency.DEVICE
            on_host = way.devices[0] == self.budgets.host
            found[index] = 2 * (len(way.devices) - 1) + moved + way.tiled + on_host + bool(way.amounts)
            found[index] += 0.01 * order[way.devices[0]]
            found[index] += 1e-6 * (sum(way.stays.values()) + sum(way.comes.values()) + way.host) / 2**30
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

    def together(self) -> tuple[np.ndarray, float, float]:
        """In each phase, what all devices hold that share the host's memory, and the host itself."""
        each, _, _ = self.within()
        phases = list(dict.fromkeys(phase for phase, _ in self.places))
        rows = np.zeros((len(phases), self.width))
        for row, (phase, device) in zip(each, self.places, strict=True):
            if device in self.budgets.together:
                rows[phases.index(phase)] += row
        return rows, -np.inf, self.budgets.of(self.budgets.host) / _UNIT

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
        if not (facts[kept] <= facts[index]).all(axis=1).any():
            kept.append(int(index))
    return [ways[index] for index in kept]


def _refined(best: Solution, loads: Sequence[Load], machine: Machine, budgets: Budgets) -> Solution:
    """Each way over several devices once more, with the chain in fine parts, where that is better."""
    ways = dict(best.ways)
    for load in loads:
        way = ways[load.name]
        one = load.by_layers if load.asked.chooses_mode else load
        is_open = not (one.asked.shares or one.asked.places_itself or one.asked.seeks_group)
        if len(way.devices) > 1 and is_open and way.mode == "layer" and way.micro_batches == 1:
            left = left_for(load, ways, budgets)
            finer = option(one, machine, left, way.devices, way.residency, way.tiled, _FINE, way.amounts)
            tried = {**ways, load.name: finer} if finer else ways
            if finer and finer.seconds <= way.seconds and fits(Solution(tried), budgets):
                ways = tried
    return Solution(ways)


def _better(one: Solution | None, other: Solution | None) -> Solution | None:
    found = [solution for solution in (one, other) if solution]
    return min(found, key=lambda solution: solution.seconds, default=None)
