"""Where all components of a pipeline run and rest: a mixed-integer linear program over ways to place each.

Variables
    for each component and each way to place it (`options.Option`) x, 0 or 1; for each phase and device the bytes L of
    values alive at most.

Objective, least
    the sum of x times the way's seconds a picture: calls times the seconds of a call, crossings and streaming included,
    and the bringing of what stays for the phase. Of the plans that take at most a five-hundredth more, the simplest is
    taken: the program is solved once more with these seconds as a constraint (`solver.py`). Where modes are to be
    found, one that takes at most a fiftieth more and has fewer devices is taken before it.

Constraints
    one way for each component (`one_each`); on each device and in each phase, the weights of all components that stay
    there, those that are there for the phase, and L are at most its budget, the host's too, in which weights rest
    (`within`), and so are those of the devices together that share the host's memory (`together`); L is at least what
    each component of the phase has alive there (`covering`).

The ways are columns, and there is one for each budget under which a component may be placed. They are made as they are
needed: first for all of the budgets, for what the quickest way of a component under each mode leaves to others, where
its mode is to be found, for what is left when components are placed one after another by the partition alone, and for
the proportional split; then, for what a solution leaves of the budgets to each component, until no component finds a
better way; and on one card for parts of weights that stay there, and what each part leaves to others. So a solution is
never worse than the partition composed, nor than the proportional split, for these are among the columns.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace

from ...compiler.spec.residency import Residency
from .groups import groups_of
from .machine import Machine
from .options import Option, option, proportional
from .solution import Solution, fits, left_for
from .solver import solve
from .trial import LAYER, Trial, places_of
from .workload import Budgets, Load

SLACK = 1.002
"""How much longer than the least a simpler plan may take."""

SPARED = 1.02
"""How much longer than the least a plan may take that leaves devices out, where modes are to be found."""

_ROUNDS = 4
_FINE = 64  # parts of a chain, when a way that was found is made finer


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
    first = _better(composed if composed and fits(composed, budgets) else None, solve(columns, budgets))
    best = _with_parts(trial, columns, _in_rounds(trial, columns, first))
    if best is None:
        return None
    simple = _refined(solve(columns, budgets, best.seconds * SLACK) or best, loads, machine, budgets)
    if any(load.asked.chooses_mode for load in loads):
        spared = solve(columns, budgets, best.seconds * SPARED)
        return _on_fewer(simple, spared and _refined(spared, loads, machine, budgets))
    return simple


def _in_rounds(trial: Trial, columns: Mapping[str, list[Option]], best: Solution | None) -> Solution | None:
    """A solution, or a better one of ways for what it leaves to each component, which are put among the columns."""
    for _ in range(_ROUNDS if best else 0):
        assert best is not None
        for load in trial.loads:
            columns[load.name].extend(trial.options(load, left_for(load, best.ways, trial.budgets)))
        found = solve(columns, trial.budgets)
        if found is None or found.seconds >= best.seconds * (1 - 1e-4):
            break
        best = found
    return best


def _on_fewer(one: Solution, other: Solution | None) -> Solution:
    """A solution, or another one that hardly takes longer, where that has fewer devices compute."""
    if other is None or other.seconds > one.seconds * SPARED:
        return one
    counts = [sum(len(way.devices) for way in some.ways.values()) for some in (one, other)]
    return other if counts[1] < counts[0] else one


def _with_parts(trial: Trial, columns: Mapping[str, list[Option]], best: Solution | None) -> Solution | None:
    """A solution, or a better one in which the only card keeps a part of what does not fit there for good.

    Others take what that leaves: small ones first, for they are hardly noticed, and large ones can do with the rest.
    What is not computed in tiles by then is not so after it, for tiles change a picture.
    """
    cards = [one for one in trial.machine.devices if one != trial.machine.host and trial.budgets.of(one)]
    if len(cards) != 1 or Residency.DISK in trial.places:
        return best
    whole = frozenset(name for name, way in (best.ways if best else {}).items() if not way.tiled)
    trial = replace(trial, stays=True, whole=whole)
    open_ones = [load for load in trial.loads if load.asked.residency is None]
    parted = [(load, way) for load in open_ones for way in trial.options(load, trial.budgets) if way.amounts]
    if not parted:
        return best
    for name in whole:
        columns[name][:] = [way for way in columns[name] if not way.tiled]
    for load, way in parted:
        columns[load.name].append(way)
        placed = {load.name: way}
        for other in sorted((one for one in trial.loads if one is not load), key=lambda one: one.nbytes):
            ways = list(trial.options(other, left_for(other, placed, trial.budgets)))
            columns[other.name].extend(ways)
            if ways:
                placed[other.name] = min(ways, key=lambda one: one.seconds)
    return _in_rounds(trial, columns, _better(best, solve(columns, trial.budgets)))


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
