"""The plan that a search found, as data: what each device has of each component, and the line that asks for it."""

from __future__ import annotations

import shlex
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from fractions import Fraction
from math import lcm

from ...compiler.devices.device import Device
from ...compiler.spec.backend import AUTO, Resting
from ...compiler.spec.residency import ALIKE, Amounts, Residency
from ...compiler.units import number_text
from ..placement.place import Part as Placed
from ..placement.place import Room, split_parts
from .options import Option
from .solution import Solution, peaks
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
    has. ``amounts`` rest elsewhere than most weights do, and by ``ratio`` a split by layers has the blocks that the
    shares say; it is empty on one device, and for a split by rows or under another ``mode`` of which no shares were
    asked, which finds them when it is placed. In ``micro_batches`` the pictures of a call go through its devices.
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
    amounts: Amounts = ALIKE
    ratio: tuple[float, ...] = ()
    mode: str = "layer"
    micro_batches: int = 1

    @property
    def devices(self) -> tuple[Device, ...]:
        """Its devices, main first."""
        return tuple(share.device for share in self.shares)

    @property
    def rests_elsewhere(self) -> bool:
        """Whether most of its weights rest elsewhere than on its devices."""
        return self.residency is not Residency.DEVICE


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
        len(chain.parts), way.amounts, _ratio(load, way), _mode(load, way), way.micro_batches,
    )  # fmt: skip


def settings_of(solution: Solution, loads: Sequence[Load]) -> dict[str, str]:
    """What asks for a solution, by option: devices, residency, shares, tiles, chunks, and micro-batches."""
    ways = solution.ways
    backend = {name: "&".join(map(str, way.devices)) for name, way in ways.items()}
    backend |= {load.name: "&".join(map(str, load.asked.devices)) for load in loads if load.asked.places_itself}
    resting = {
        load.name: _resting(load, ways[load.name])
        for load in loads
        if ways[load.name].residency is not Residency.DEVICE
    }
    ratios = {load.name: _ratio(load, ways[load.name]) for load in loads}
    shares = {name: ":".join(map(number_text, ratio)) for name, ratio in ratios.items() if ratio}
    modes = {load.name: _mode(load, ways[load.name]) for load in loads}
    modes = {name: mode for name, mode in modes.items() if mode != "layer"}
    chunks = {load.name: str(load.asked.chunks) for load in loads if load.asked.chunks > 1}
    parts = {name: str(way.micro_batches) for name, way in ways.items() if way.micro_batches > 1}
    resting = _of_each(resting, AUTO, loads)
    found = {
        "--backend": _listed(by_role(backend, loads, "&"), backend.keys() == ways.keys()),
        "--params-backend": _listed(by_role(resting, loads), resting.keys() == ways.keys()),
        "--split-mode": _listed(by_role(modes, loads), modes.keys() == ways.keys()),
        "--tensor-split": _listed(by_role(shares, loads)),
        "--vae-tiling": "on" if any(way.tiled for way in ways.values()) else "",
        "--chunk": _listed(by_role(_of_each(chunks, "off", loads), loads)),
        "--micro-batches": _listed(by_role(_of_each(parts, "off", loads), loads)),
    }
    return {option: value for option, value in found.items() if value}


def _of_each(values: Mapping[str, str], none: str, loads: Sequence[Load]) -> dict[str, str]:
    """The values, and none for components that would take that of another one, which is called as their role is."""
    others = {load.name: none for load in loads if load.role in values and load.name not in values}
    return {**values, **others}


def _resting(load: Load, way: Option) -> str:
    """Where the weights of a way rest, as `--params-backend` says it; amounts as they were said, if they were."""
    amounts = way.amounts if load.asked.residency is None else load.asked.amounts
    return str(Resting(way.residency.value, amounts=amounts))


def by_role(values: Mapping[str, str], loads: Sequence[Load], lists: str = "") -> dict[str, str]:
    """The values by role where all components of a role have the same one, and by component elsewhere.

    A list of devices (with ``lists`` in it) is said of each of several components by name, for of several text encoders
    a role's list spreads the largest alone. A component that is called as another's role keeps its name.
    """
    names = {load.name for load in loads}
    found: dict[str, str] = {}
    for load in loads:
        alike = [one.name for one in loads if one.role == load.role]
        same = {values.get(name) for name in alike}
        is_list = bool(lists) and any(lists in (value or "") for value in same)
        by_name = len(same) > 1 or (len(alike) > 1 and is_list) or (load.role in names and load.role not in alike)
        if load.name in values:
            found[load.name if by_name else load.role] = values[load.name]
    return found


def _listed(values: Mapping[str, str], of_all: bool = False) -> str:
    """Items of a spec; where they are of all components, what most of them have stands last and without a key.

    A list of devices is never without a key, see `by_role`.
    """
    counts = Counter(value for value in values.values() if "&" not in value)
    most, count = max(counts.items(), key=lambda one: one[1], default=("", 0))
    if not of_all or not most or (count < 2 and len(values) > 1):
        return ",".join(f"{name}={value}" for name, value in values.items())
    return ",".join([*(f"{name}={value}" for name, value in values.items() if value != most), most])


def _ratio(load: Load, way: Option) -> tuple[float, ...]:
    """The shares with which a component is split as a way has it.

    None on one device, or where those of the mode are found when it is placed.
    """
    if load.asked.places_itself or way.mode != "layer":
        return _in_whole_numbers(way.shares or load.asked.shares)
    return _shares(load, way) if len(way.devices) > 1 else ()


def _mode(load: Load, way: Option) -> str:
    """How a component is split over the devices of a way; by layers on one device."""
    if load.asked.places_itself or (load.asked.mode == "row" and len(way.devices) > 1):
        return load.asked.mode
    return way.mode


def _in_whole_numbers(shares: Sequence[float]) -> tuple[float, ...]:
    """Shares in whole numbers where these are the same shares."""
    exact = [Fraction(share).limit_denominator(1000) for share in shares]
    whole = lcm(*(one.denominator for one in exact))
    if all(abs(one - share) < 1e-9 for one, share in zip(exact, shares, strict=True)):
        return tuple(int(one * whole) for one in exact)
    return tuple(shares)


def _shares(load: Load, way: Option) -> tuple[int, ...]:
    """Shares with which a layer split has these ranges: the bytes of each, which is checked."""
    chain, _ = load.called(way.tiled)
    nbytes = [sum(part.nbytes for part in chain.parts[start:end]) for start, end in way.ranges]
    nbytes[0] += chain.rest.nbytes
    unit = min(2**20, max(1, sum(nbytes) // 1000))
    exact = [max(1, round(one / unit)) for one in nbytes]
    counts = [end - start for start, end in way.ranges]
    parts = [Placed(part.nbytes) for part in chain.parts]

    def gives_them(shares: Sequence[int]) -> bool:
        return split_parts(parts, [Room(0)] * len(shares), Placed(chain.rest.nbytes), list(shares)) == counts

    rounded = ([max(1, round(whole * one / sum(exact))) for one in exact] for whole in (10, 100, 1000))
    return tuple(next((some for some in (*rounded, exact) if gives_them(some)), counts))
