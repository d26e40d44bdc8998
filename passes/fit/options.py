"""The ways to place one component: the columns of which the search picks one for each component.

A way is a list of devices, a residency, and in tiles or not, under some budgets. Over several devices, and where
weights come and go in every call, the partition of the chain says what lies where.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import accumulate, pairwise, product

from ...compiler.devices.device import Device
from ...compiler.spec.residency import ALIKE, Amounts, Residency
from ..placement.place import Part as Placed
from ..placement.place import Room as Offer
from ..placement.place import split_parts
from .chain import Chain, Part
from .grains import BLOCKS, GRAINS, SLOTS, Grain
from .machine import Machine
from .partition import Piece, Problem, Room, Split, in_ranges, partition
from .workload import Budgets, Load

PARTS = 16
"""Of a chain that is split over several devices while ways are looked for."""

_MIB = 2**20
_PARTS_IN_MEMORY = (0, 0.5, 0.75, 0.95)
"""Parts of the host's memory that are tried for weights of which others rest on disk."""

_PARTS_ON_DEVICE = (0.5, 0.75, 0.95)
"""Parts of what a device has beside values and slots that are tried for weights which stay, of which others come."""

WHOLE = 10**9
"""More parts than any chain has."""


@dataclass(frozen=True)
class Option:
    """A way to place a component: what it holds where, and its seconds a picture.

    ``ranges`` are the blocks of each device, and ``rests`` says for each block whether it is on its device (throughout,
    or for the phase) or is brought in every call. ``stays`` are the bytes of weights that are there all the time,
    ``comes`` those that are there in the phase, slots included, ``live`` the most of values, ``host`` the bytes that
    rest in the host's memory. ``amounts`` of the weights rest on the device, or in the host's memory, where the others
    rest as ``residency`` says. ``bringing`` seconds of ``seconds`` go into bringing what stays for the phase. Under a
    ``mode`` all devices compute all blocks together, in ``shares`` of their own where those are not what their speed
    gives; in ``micro_batches`` the pictures of a call go through devices in turn.
    """

    name: str
    phase: str
    devices: tuple[Device, ...]
    ranges: tuple[tuple[int, int], ...]
    rests: tuple[Residency, ...]
    residency: Residency
    tiled: bool
    seconds: float
    bringing: float
    stays: Mapping[Device, int] = field(hash=False)
    comes: Mapping[Device, int] = field(hash=False)
    live: Mapping[Device, int] = field(hash=False)
    streamed: Mapping[Device, int] = field(hash=False)
    weights: Mapping[Device, int] = field(hash=False)
    host: int = 0
    amounts: Amounts = ALIKE
    mode: str = "layer"
    shares: tuple[float, ...] = ()
    micro_batches: int = 1

    def needs(self, device: Device) -> int:
        """The bytes on a device while the component works."""
        return self.stays.get(device, 0) + self.comes.get(device, 0) + self.live.get(device, 0)


def options_of(
    load: Load, machine: Machine, budgets: Budgets, lists: Sequence[tuple[Device, ...]], places: Sequence[Residency],
    stays: bool = False,
) -> Iterator[Option]:  # fmt: skip
    """All ways to place a component on some lists of devices under some budgets, those that do not fit left out.

    ``places`` are those where weights may rest that were not told where; a part of what does not fit on a device
    ``stays`` there, if that is to be tried though the host's memory has room. Several devices are left out where the
    fastest of them takes all: what they leave of it to others counts when others have taken their part of the budgets.
    And they are left out where the best way with more devices leaves out the others, or where even more have no room.
    """
    alone: set[tuple[Device, Residency, bool]] = set()
    tried: dict[tuple[object, ...], list[tuple[tuple[Device, ...], Option | None]]] = defaultdict(list)
    asked = [load.asked.devices] if load.asked.devices else lists
    for devices in sorted(asked, key=lambda one: (len(one) > 1, -len(one))):
        fastest = min(devices, key=lambda device: _seconds(load, machine, device))
        for residency in (
            one for one in residencies(load, devices, machine.host) if one in places or load.asked.residency
        ):
            for tiled in load.ways():
                if (fastest, residency, tiled) in alone and not load.asked.devices:
                    continue
                for amounts in _amounts(load, residency, devices, budgets, Residency.DISK in places, stays):
                    alike = tried[residency, tiled, amounts]
                    if len(devices) > 1 and any(_is_settled(devices, *one) for one in alike):
                        continue
                    found = option(load, machine, budgets, devices, residency, tiled, amounts=amounts)
                    alike.append((devices, found))
                    if found is not None:
                        if len(devices) == 1 and not any(found.streamed.values()):
                            alone.add((fastest, residency, tiled))
                        yield found


def _is_settled(devices: Sequence[Device], more: Sequence[Device], found: Option | None) -> bool:
    """Whether the best way with some devices is the one that was found with more of them, in which others are empty."""
    if devices[0] != more[0] or (found and not set(found.devices) <= set(devices)):
        return False
    return [one for one in more if one in devices] == list(devices)


def _amounts(
    load: Load, residency: Residency, devices: Sequence[Device], budgets: Budgets, is_scarce: bool, stays: bool
) -> list[Amounts]:
    """How much of weights that rest elsewhere may rest on the device, and of those on disk in the host's memory.

    Either is nothing, or parts of what may be used there; on the device also what the host has no room for. What rests
    on the device is not brought for each picture, and needs no memory of the host. That is tried where the host's
    memory ``is_scarce``, and where ``stays`` of what is called more than once and does not fit there.
    """
    if load.asked.residency is not None:
        return [load.asked.amounts]
    if residency is Residency.DEVICE or budgets.host in devices:
        return [ALIKE]
    budgets = budgets.less(load.more)
    host = budgets.of(budgets.host)
    in_memory = [0]
    if residency is not Residency.HOST:
        in_memory = parts_worth(load, [int(host * part) for part in _PARTS_IN_MEMORY])
    on_device = [0]
    free = budgets.of(devices[0]) - load.chain.live
    if len(devices) == 1 and (is_scarce or (stays and free < load.nbytes and load.times > 1)):
        room = free - SLOTS * max((part.largest for part in load.chain.parts), default=0)
        on_device = parts_worth(load, [0, *(int(room * part) for part in _PARTS_ON_DEVICE), load.nbytes - host + _MIB])
    return [Amounts(*both) for both in product(on_device, in_memory)]


def parts_worth(load: Load, sizes: Sequence[int]) -> list[int]:
    """Those of some sizes that are none or a good part of a component, in MiB that are whole."""
    whole = dict.fromkeys(size // _MIB * _MIB for size in sizes)
    return [size for size in whole if not size or load.nbytes // 20 < size < load.nbytes]


def _seconds(load: Load, machine: Machine, device: Device) -> float:
    chain, _ = load.coarse(False, WHOLE)
    rest, parts = load.seconds(chain, machine.speeds[device])
    return rest + sum(parts)


def residencies(load: Load, devices: Sequence[Device], host: Device) -> list[Residency]:
    """Where the weights of a component on some devices may rest, by what was asked."""
    if load.asked.residency is not None:
        return [load.asked.residency]
    others = [] if all(device == host for device in devices) else [Residency.HOST]
    return [Residency.DEVICE, *others, *([Residency.DISK] if load.in_files else [])]


def option(
    load: Load, machine: Machine, budgets: Budgets, devices: tuple[Device, ...], residency: Residency, tiled: bool,
    most: int = PARTS, amounts: Amounts = ALIKE,
) -> Option | None:  # fmt: skip
    """The best way under some budgets with devices, a residency, in tiles or not; None if it does not fit.

    ``amounts`` of the weights rest on the devices for good, or in the host's memory where the others rest on disk.
    Weights come and go in stages finer than a block only where they have no room for blocks. It is found once for what
    these devices may use, whatever others may.
    """
    given = devices, residency, tiled, most, amounts
    return load.once(machine, (budgets.rooms(devices), given), lambda: _find(load, machine, budgets, *given))


def _find(
    load: Load, machine: Machine, budgets: Budgets, devices: tuple[Device, ...], residency: Residency, tiled: bool,
    most: int, amounts: Amounts,
) -> Option | None:  # fmt: skip
    budgets = budgets.less(load.more)
    whole, counts = load.coarse(tiled, WHOLE if len(devices) == 1 or load.asked.is_split else most)
    chain = _coming(whole, amounts.on_device if residency is not Residency.DEVICE else 0)
    for grain in GRAINS if residency.stages_on(devices[0]) else GRAINS[:1]:
        coming = grain.of(chain, len(devices) == 1)
        if grain.is_fine and grain.least(coming, len(devices) == 1) > budgets.of(devices[0]):
            continue
        in_memory = min(amounts.in_memory, chain.nbytes) if residency is Residency.DISK else 0
        split = _split(load, whole, machine, budgets, devices, residency, in_memory, coming, grain)
        if split is not None:
            on_device = min(amounts.on_device, whole.nbytes) if chain is not whole else 0
            given, times = Amounts(on_device, in_memory), load.way(tiled)[1]
            return as_option(
                load, whole, times, machine, devices, residency, tiled, split, counts, given, coming, grain
            )
    return None


def _split(
    load: Load, whole: Chain, machine: Machine, budgets: Budgets, devices: tuple[Device, ...], residency: Residency,
    in_memory: int, chain: Chain, grain: Grain,
) -> Split | None:  # fmt: skip
    """What lies where, with weights that come in some grain.

    Those on disk stay for the phase before those ``in_memory`` do, so that how much of what a device streams comes from
    disk follows from how much stays there; that is found in turns, of which the better one is taken. Where nothing is
    streamed if all comes from the host's memory, nothing is that comes from disk, which is slower.
    """
    if residency is not Residency.DEVICE and machine.host not in devices and not load.asked.is_split:
        given = load, whole, machine, budgets, devices, Residency.HOST, None, chain, grain
        key = id(whole), whole.nbytes - chain.nbytes, devices, budgets.rooms(devices), grain
        quickest = load.once(machine, key, lambda: partition(problem_of(*given)))
        if quickest is None or residency is Residency.HOST or set(quickest.residency) <= {Residency.DEVICE}:
            return quickest
    even = 1 - in_memory / max(1, chain.nbytes)
    part, best = dict.fromkeys(devices, even), None
    problem = problem_of(load, whole, machine, budgets, devices, residency, part, chain, grain)
    for _ in range(2 if in_memory else 1):
        split = _asked(load, whole, problem) if load.asked.is_split else None
        if not (load.asked.shares or load.asked.places_itself):
            split = split or partition(problem)
        if split is None:
            break
        if in_memory:
            part = _from_disk(chain, split, grain, devices, even)
            problem = problem_of(load, whole, machine, budgets, devices, residency, part, chain, grain)
            split = replace(split, seconds=problem.seconds_in(split.ranges, split.residency))
        best = split if best is None or split.seconds < best.seconds else best
    return best


def _from_disk(chain: Chain, split: Split, grain: Grain, devices: Sequence[Device], even: float) -> dict[Device, float]:
    """The part of what each device streams that comes from disk, where an ``even`` part of all its weights rests there.

    Of these as many as can be stay for the phase, before any of those in memory do.
    """
    found = {}
    for device, (start, end) in zip(devices, split.ranges, strict=True):
        parts = list(zip(chain.parts[start:end], split.residency[start:end], strict=True))
        own = sum(part.nbytes for part, _ in parts)
        streamed = sum(part.nbytes for part, rests in parts if rests is not Residency.DEVICE)
        if device == devices[0]:
            own += chain.rest.nbytes
            streamed += chain.rest.nbytes if grain.has_rest else 0
        found[device] = max(0.0, streamed - own * (1 - even)) / max(1, streamed)
    return found


def _coming(chain: Chain, on_device: int) -> Chain:
    """A chain with the weights alone that come and go, where so many bytes stay, spread evenly over all of it."""
    if not on_device:
        return chain
    total = max(1, chain.nbytes)
    stays = min(on_device, total)
    ends = [end * stays // total for end in accumulate(part.nbytes for part in (chain.rest, *chain.parts))]

    def smaller(part: Part, before: int, end: int) -> Part:
        nbytes = part.nbytes - (end - before)
        return replace(part, nbytes=nbytes, largest=min(nbytes, -(-part.largest * (total - stays) // total)))

    rest, *parts = map(smaller, (chain.rest, *chain.parts), (0, *ends), ends)
    return replace(chain, rest=rest, parts=tuple(parts))


def proportional(load: Load, machine: Machine, budgets: Budgets, devices: tuple[Device, ...]) -> Option | None:
    """The way in which each device is filled in proportion to what it offers, with weights that stay; found once."""
    key = "proportional", devices, budgets.rooms(devices)
    return load.once(machine, key, lambda: _proportional(load, machine, budgets, devices))


def _proportional(load: Load, machine: Machine, budgets: Budgets, devices: tuple[Device, ...]) -> Option | None:
    budgets = budgets.less(load.more)
    chain, counted = load.coarse(False, WHOLE)
    problem = problem_of(load, chain, machine, budgets, devices, Residency.DEVICE)
    parts = [Placed(part.nbytes, part.live) for part in chain.parts]
    counts = split_parts(parts, [Offer(budgets.of(one)) for one in devices], Placed(chain.rest.nbytes, chain.rest.live))
    split = _of_counts(problem, counts)
    if split is None:
        return None
    return as_option(load, chain, load.times, machine, devices, Residency.DEVICE, False, split, counted)


def problem_of(
    load: Load, chain: Chain, machine: Machine, budgets: Budgets, devices: Sequence[Device], residency: Residency,
    part: Mapping[Device, float] | None = None, coming: Chain | None = None, grain: Grain = BLOCKS,
) -> Problem:  # fmt: skip
    """The chain on a list of devices as a problem of partition; ``part`` of what comes from disk does so.

    ``coming`` is the chain with the weights that come and go, in some grain, where others stay on the devices whatever
    is streamed.
    """
    speeds = machine.speeds
    left = chain if coming is None else coming

    def piece(all_of: Part, comes: Part) -> Piece:
        stays = all_of.nbytes - comes.nbytes
        return Piece(comes.nbytes, comes.largest, comes.live, comes.boundary, stays)

    rest, rooms = piece(chain.rest, left.rest), []
    for index, device in enumerate(devices):
        rooms.append(_room(load, chain, machine, budgets, device, residency, index == 0, (part or {}).get(device, 1.0)))
    if grain.has_rest:
        comes = max(0, rest.nbytes - load.unread)
        rooms[0] = replace(rooms[0], rest=rooms[0].rest + comes * rooms[0].loads[residency])
        rest = replace(rest, nbytes=chain.rest.least)
    return Problem(
        list(map(piece, chain.parts, left.parts)),
        rooms,
        rest,
        {(i, j): 1 / speeds.crossing(a, b) for i, a in enumerate(devices) for j, b in enumerate(devices)},
        host=chain.nbytes,
        slots=grain.slots,
        latency=speeds.latency,
        exposed=grain.exposed,
    )


def _room(
    load: Load, chain: Chain, machine: Machine, budgets: Budgets, device: Device, residency: Residency, is_main: bool,
    part: float,
) -> Room:  # fmt: skip
    rest, seconds = load.seconds(chain, machine.speeds[device])
    streams = residency is Residency.DISK or (residency is Residency.HOST and device != machine.host)
    loads = {residency: load.longer * _seconds_a_byte(machine, device, residency, part)} if streams else {}
    return Room(budgets.of(device), seconds, rest if is_main else 0.0, loads)


def _seconds_a_byte(machine: Machine, device: Device, residency: Residency, part: float) -> float:
    """The seconds in which a byte comes to a device: a part of those on disk from there, else from host memory."""
    of_host = 1 / machine.speeds.loading(device, False)
    if residency is not Residency.DISK:
        return of_host
    return part / machine.speeds.loading(device, True) + (1 - part) * (0.0 if device == machine.host else of_host)


def _asked(load: Load, chain: Chain, problem: Problem) -> Split | None:
    """The split that a person asked for: by shares, or in proportion to what the devices of the list offer."""
    shares = [*load.asked.shares, *[0.0] * len(problem.rooms)][: len(problem.rooms)] if load.asked.shares else ()
    parts = [Placed(part.nbytes, part.live) for part in chain.parts]
    rooms = [Offer(room.budget) for room in problem.rooms]
    rest = chain.rest.nbytes - (load.unread if shares else 0)  # which shares do not divide
    return _of_counts(problem, split_parts(parts, rooms, Placed(rest, chain.rest.live), shares))


def _of_counts(problem: Problem, counts: Sequence[int]) -> Split | None:
    """The split with so many parts on each device; None if it does not fit."""
    return in_ranges(problem, tuple(pairwise([0, *accumulate(counts)])))


def as_option(
    load: Load, whole: Chain, times: float, machine: Machine, devices: Sequence[Device], residency: Residency,
    tiled: bool, split: Split, counts: Sequence[int], amounts: Amounts = ALIKE, coming: Chain | None = None,
    grain: Grain = BLOCKS,
) -> Option:  # fmt: skip
    """A split as a way to place a component, with its bytes; devices that have nothing are left out.

    ``counts`` says how many blocks each part of the chain has, ``coming`` is the chain without the weights that stay
    whatever is streamed, which comes in some grain.
    """
    chain = whole if coming is None else coming
    stays: Counter[Device] = Counter({devices[0]: whole.rest.nbytes - chain.rest.nbytes})
    kept: Counter[Device] = Counter({devices[0]: 0 if grain.has_rest else chain.rest.nbytes})
    streamed: Counter[Device] = Counter({devices[0]: chain.rest.nbytes} if grain.has_rest else {})
    held = Counter({devices[0]: chain.rest.least} if grain.has_rest else {})
    slots: Counter[Device] = Counter()
    live: Counter[Device] = Counter({devices[0]: chain.rest.live})
    for device, (start, end) in zip(devices, split.ranges, strict=True):
        stays[device] += sum(part.nbytes for part in whole.parts[start:end])
        for part, rests in zip(chain.parts[start:end], split.residency[start:end], strict=True):
            stays[device] -= part.nbytes
            live[device] = max(live[device], part.live)
            if rests is Residency.DEVICE:
                kept[device] += part.nbytes
            else:
                streamed[device] += part.nbytes
                slots[device] = max(slots[device], grain.slots * part.largest)
    moves = {device: residency.stages_on(device) for device in devices}
    for_phase = sum(nbytes for device, nbytes in kept.items() if moves[device])
    on_disk = min(1.0, max(0, chain.nbytes - amounts.in_memory) / max(1, for_phase))  # they do before the others
    each = {device: _seconds_a_byte(machine, device, residency, on_disk) for device in devices}
    bringing = sum(nbytes * each[device] for device, nbytes in kept.items() if moves[device])
    resting = sum(n for one in (kept, streamed) for device, n in one.items() if moves[device])
    ends = [0, *accumulate(counts)]
    places = [place for place, count in zip(split.residency, counts, strict=True) for _ in range(count)]
    used = [index for index, (start, end) in enumerate(split.ranges) if end > start or index == 0]
    live += Counter({devices[index]: load.more.get(devices[index], 0) for index in used})
    ranges = [(ends[split.ranges[index][0]], ends[split.ranges[index][1]]) for index in used]
    brought = Counter({device: nbytes for device, nbytes in kept.items() if moves[device]})
    stays += Counter({device: nbytes for device, nbytes in kept.items() if not moves[device]})
    return Option(
        load.name, load.phase, tuple(devices[index] for index in used), tuple(ranges), tuple(places), residency, tiled,
        times * split.seconds + bringing, bringing,
        stays=dict(+stays),
        comes=dict(brought + slots + held),
        live=dict(+live), streamed=dict(streamed), weights=dict(brought + stays),
        host=resting if residency is Residency.HOST else amounts.in_memory,
        amounts=amounts,
    )  # fmt: skip
