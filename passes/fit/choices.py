"""What a picture would take in each way to split a component whose mode was to be found: what was chosen from."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from ...compiler.devices.device import Device
from .groups import MODES, groups_of, why_no_group
from .machine import Machine
from .search import search
from .solution import Solution
from .trial import ALONE, LAYER, places_of
from .workload import Budgets, Load


@dataclass(frozen=True)
class Choice:
    """A way to split a component: on one device, by layers, or under a mode.

    ``seconds`` are those of a picture with the component split so, on ``devices``, and all else as is quickest then;
    None where it cannot be, for the reason ``why``. ``is_taken`` says that it is the way that was found, and
    ``micro_batches`` in how many parts the pictures of a call go through its devices.
    """

    component: str
    mode: str
    devices: tuple[Device, ...] = ()
    seconds: float | None = None
    why: str = ""
    is_taken: bool = False
    micro_batches: int = 1


def choices(loads: Sequence[Load], solution: Solution, machine: Machine, budgets: Budgets) -> Iterator[Choice]:
    """The ways of each component whose mode was found, one a mode, but of those that take a trifle of a picture."""
    for load in _heavy(loads, solution):
        for mode in (*(() if load.asked.devices else (ALONE,)), LAYER, *MODES):
            yield _choice(load, mode, loads, solution, machine, budgets)


def taken(loads: Sequence[Load], solution: Solution) -> Iterator[Choice]:
    """The way that was taken of each such component, for which nothing is searched."""
    for load in _heavy(loads, solution):
        way = solution.ways[load.name]
        yield Choice(load.name, _kind(solution, load), way.devices, solution.seconds, "", True, way.micro_batches)


def _heavy(loads: Sequence[Load], solution: Solution) -> Iterator[Load]:
    """The components whose mode was found, but of those that take a trifle of a picture."""
    for load in loads:
        if load.asked.chooses_mode and solution.ways[load.name].seconds > _TRIFLE * solution.seconds:
            yield load


_TRIFLE = 0.05
"""Of a component that takes a smaller part of a picture nothing is said."""


def _choice(
    load: Load, mode: str, loads: Sequence[Load], solution: Solution, machine: Machine, budgets: Budgets
) -> Choice:
    found = _kind(solution, load)
    other = solution if found == mode else search(loads, machine, budgets, {load.name: mode})
    if other is not None and not (mode == LAYER and _kind(other, load) == ALONE):
        way, is_taken = other.ways[load.name], other is solution
        return Choice(load.name, mode, way.devices, other.seconds, "", is_taken, way.micro_batches)
    return Choice(load.name, mode, why=_why(load, mode, machine, budgets, loads))


def _kind(solution: Solution, load: Load) -> str:
    way = solution.ways[load.name]
    return way.mode if way.mode != LAYER or len(way.devices) > 1 or load.asked.devices else ALONE


def _why(load: Load, mode: str, machine: Machine, budgets: Budgets, loads: Sequence[Load]) -> str:
    """Why a component cannot be split so."""
    if mode == ALONE:
        return "no device has room for it"
    if mode == LAYER:
        several = "by layers over several devices it is never quicker than on one"
        return several if len(machine.devices) > 2 else "there is one"
    groups = [load.asked.devices] if load.asked.devices else groups_of(machine, budgets)
    reason = why_no_group(load.under(mode), machine, budgets, places_of(loads, budgets), groups)
    return reason or "devices have no room for it so beside other components"
