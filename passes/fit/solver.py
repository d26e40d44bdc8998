"""The mixed-integer linear program over ways to place components, which HiGHS solves; `search` states it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from ...compiler.devices.device import Device
from ...compiler.spec.residency import Residency
from .options import Option
from .solution import Solution
from .workload import Budgets

_NODES = 10_000  # of the solver's tree: a limit that is no time, so that equal input gives an equal plan


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

_MOVED = {Residency.DEVICE: 0.0, Residency.HOST: 1.0, Residency.DISK: 1.5}
"""What it is to a person that weights rest somewhere, among the burdens."""


class _Model:
    """The matrices of the program, in MiB: a column for each way, then one for the values of each phase and device."""

    def __init__(self, ways: Sequence[Option], places: Sequence[tuple[str, Device]], budgets: Budgets) -> None:
        self.ways, self.places, self.budgets = ways, places, budgets
        self.width = len(ways) + len(places)

    def seconds(self) -> np.ndarray:
        """The seconds of each way."""
        return np.array([way.seconds for way in self.ways] + [0.0] * len(self.places))

    def burdens(self) -> np.ndarray:
        """What a way is to a person: devices behind the first, weights that rest elsewhere, amounts, tiles, the host.

        What is read from files for each picture is more than what is from memory. Ties go to the first device of the
        rig, and to less memory.
        """
        order = {device: index for index, device in enumerate(self.budgets.devices)}
        found = np.zeros(self.width)
        for index, way in enumerate(self.ways):
            on_host = way.devices[0] == self.budgets.host
            found[index] = 2 * (len(way.devices) - 1) + way.tiled + on_host
            found[index] += _MOVED[way.residency] + 2 * bool(way.amounts)
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
