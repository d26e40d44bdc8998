"""The plan that a search found, as data: what each device has of each component, and the line that asks for it."""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from ...compiler.spec.backend import AUTO, Resting
from ...compiler.spec.devices import Device
from ...compiler.spec.residency import Residency
from ..placement.place import Part as Placed
from ..placement.place import Room, split_parts
from .options import Option
from .search import Solution, peaks
from .workload import Budgets, Load


@dataclass(frozen=True)
class Share:
    """What a device has of a component: which blocks, and bytes of weights that are there, streamed, and of values.

    ``blocks`` are the first one and the one behind the last, by number.
    """

    device: Device
    blocks: tuple[int, int]
    weights: int
    streamed: int
    values: int


@dataclass(frozen=True)
class PlacedComponent:
    """A component of the plan: its shares, main device first, where its weights rest, and its seconds a picture.

    ``residency`` is where all of its weights rest while nobody computes with them, and ``streamed`` says for each block
    whether it is brought in every call; the others are there for the phase, or throughout. ``of`` is how many blocks it
    has. Wide parts are computed in ``chunks`` chunks.
    """

    name: str
    role: str
    phase: str
    shares: tuple[Share, ...]
    residency: Residency
    streamed: tuple[bool, ...]
    tiled: bool
    times: float
    seconds: float
    bringing: float
    of: int
    chunks: int = 1

    @property
    def devices(self) -> tuple[Device, ...]:
        """Its devices, main first."""
        return tuple(share.device for share in self.shares)


@dataclass(frozen=True)
class Plan:
    """Where all components run and rest, the bytes on each device at most by phase, and the seconds of a picture.

    ``notes`` say what may be asked of it: why a device is not used. ``settings`` are what a command line takes, by
    option.
    """

    components: tuple[PlacedComponent, ...]
    budgets: Mapping[Device, int]
    peaks: Mapping[tuple[str, Device], int]
    seconds: float
    settings: Mapping[str, str] = field(default_factory=dict)
    notes: tuple[str, ...] = ()

    @property
    def peak(self) -> dict[Device, int]:
        """The bytes on each device at most, over all phases."""
        found: dict[Device, int] = {}
        for (_, device), nbytes in self.peaks.items():
            found[device] = max(found.get(device, 0), nbytes)
        return found

    @property
    def line(self) -> str:
        """The options that ask for this plan, for a shell."""
        return " ".join(f"{option} {shlex.quote(value)}" for option, value in self.settings.items())


def plan_of(solution: Solution, loads: Sequence[Load], budgets: Budgets, notes: Sequence[str] = ()) -> Plan:
    """The plan of a solution."""
    components = tuple(_placed(load, solution.ways[load.name]) for load in loads)
    given = {"--max-vram": budgets.typed} if budgets.typed else {}
    return Plan(
        components,
        dict(budgets.devices),
        peaks(solution, budgets),
        solution.seconds,
        {**settings_of(solution, loads), **given},
        tuple(notes),
    )


def _placed(load: Load, way: Option) -> PlacedComponent:
    chain, times = load.way(way.tiled)
    shares = tuple(
        Share(
            device, way.ranges[index], way.weights.get(device, 0), way.streamed.get(device, 0), way.live.get(device, 0)
        )
        for index, device in enumerate(way.devices)
    )
    streamed = tuple(rests is not Residency.DEVICE for rests in way.rests)
    return PlacedComponent(
        load.name, load.role, load.phase, shares, way.residency, streamed, way.tiled, times, way.seconds, way.bringing,
        len(chain.parts), way.chunks,
    )  # fmt: skip


def settings_of(solution: Solution, loads: Sequence[Load]) -> dict[str, str]:
    """What asks for a solution, by option: devices, residency, shares of layer splits, tiles, and chunks."""
    ways = solution.ways
    backend = {name: "&".join(map(str, way.devices)) for name, way in ways.items()}
    resting = {name: _resting(way) for name, way in ways.items() if way.residency is not Residency.DEVICE}
    shares = {load.name: _shares(load, ways[load.name]) for load in loads if len(ways[load.name].devices) > 1}
    rows = {load.name: "row" for load in loads if load.asked.rows}
    chunks = {name: str(way.chunks) for name, way in ways.items() if way.chunks > 1}
    found = {
        "--backend": _listed(backend, ways),
        "--params-backend": _listed(_of_each(resting, AUTO, loads), ways),
        "--split-mode": _listed(rows, ways),
        "--tensor-split": _listed(shares, {}),
        "--vae-tiling": "on" if any(way.tiled for way in ways.values()) else "",
        "--chunk": _listed(_of_each(chunks, "off", loads), {}),
    }
    return {option: value for option, value in found.items() if value}


def _of_each(values: Mapping[str, str], none: str, loads: Sequence[Load]) -> dict[str, str]:
    """The values, and none for components that would take that of another one, which is called as their role is."""
    others = {load.name: none for load in loads if load.role in values and load.name not in values}
    return {**values, **others}


def _resting(way: Option) -> str:
    """Where the weights of a way rest, as `--params-backend` says it."""
    return str(Resting(way.residency.value, amounts=way.amounts))


def _listed(values: Mapping[str, str], of: Mapping[str, object]) -> str:
    """Items of a spec; one value alone where all components have the same.

    A list of devices is said of each by name, for of several text encoders a bare one spreads the largest alone.
    """
    alone = set(values.values())
    if values.keys() == of.keys() and len(alone) == 1 and "&" not in min(alone):
        return min(alone)
    return ",".join(f"{name}={value}" for name, value in values.items())


def _shares(load: Load, way: Option) -> str:
    """Shares with which a layer split has these ranges: the bytes of each, which is checked."""
    chain = load.way(way.tiled)[0]
    nbytes = [sum(part.nbytes for part in chain.parts[start:end]) for start, end in way.ranges]
    nbytes[0] += chain.rest.nbytes
    unit = min(2**20, max(1, sum(nbytes) // 1000))
    exact = [max(1, round(one / unit)) for one in nbytes]
    counts = [end - start for start, end in way.ranges]
    parts = [Placed(part.nbytes) for part in chain.parts]
    found = split_parts(parts, [Room(0)] * len(exact), Placed(chain.rest.nbytes), exact)
    return ":".join(map(str, exact if found == counts else counts))
