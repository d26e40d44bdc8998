"""Groups of devices that compute a component together, as ways to place it: the search picks one as it picks others.

A group has devices of one kind. All of them work for as long as the states take that are solved for; each has weights
and values of its own, so that it has room for a component, or its weights come and go, as on one device alone.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import pairwise

from ...compiler.devices.device import Device
from ...compiler.spec.modes import inner_mode, shares_out_weights
from ...compiler.spec.residency import ALIKE, Amounts, Residency
from ...compiler.units import format_bytes
from ..states.mesh import stretches, turn_count
from ..states.solution import NotPossible
from .chain import Chain, Part
from .group_work import GroupWork, Work
from .machine import Machine
from .options import Option, option, parts_worth, residencies
from .workload import Asked, Budgets, Load

_BY_PARTS = "it runs by its parts, of which each is placed whole"
_GROUPS = 32  # that are tried for one component
_UNEVEN = 1.1  # so much more memory than another one has a device that is given more for it
_PARTS = 16  # of which shares by memory are made
_STEPS = 16  # of the most that a device may use, in which it is said what devices have room for
_PARTS_ON_DEVICES = (0.75, 0.85, 0.95)  # of the least room of a group, tried for weights that stay beside others

MODES = ("sequence", "batch", "batch+sequence", "tensor", "batch+tensor", "spatial", "row")
"""The modes in which devices compute a component together, in the order in which they are tried."""


def groups_of(machine: Machine, budgets: Budgets) -> list[tuple[Device, ...]]:
    """Groups worth trying: of the devices of a kind, the fastest and largest first, stretches of 2, 4, 8 … and all.

    So are those that are faster than all others of the kind.
    """
    kinds = machine.kinds(budgets)
    order = sorted(
        filter(budgets.of, kinds),
        key=lambda one: (-kinds[one][0].rate("float16"), kinds[one][1], machine.devices.index(one)),
    )
    found: list[tuple[Device, ...]] = []
    for kind in dict.fromkeys(one.kind for one in order):
        some = [one for one in order if one.kind == kind]
        sizes = {2**power for power in range(1, len(some).bit_length()) if 2**power < len(some)} | {len(some)}
        rates = [kinds[one][0].rate("float16") for one in some]
        faster = {at for at, (one, other) in enumerate(pairwise(rates), 1) if one > other} - sizes
        for size in sorted((sizes | faster) - {1}, reverse=True):
            places = 1 if size in faster else len(some) - size + 1
            found += [tuple(some[at : at + size]) for at in range(places)]
    return found[:_GROUPS]


def group_options(
    load: Load, machine: Machine, budgets: Budgets, groups: Sequence[tuple[Device, ...]], places: Sequence[Residency]
) -> Iterator[Option]:
    """All ways in which groups compute a component together under some budgets, those that do not fit left out."""
    for devices in groups:
        yield from _ways(load, machine, budgets, devices, places)


def quick_options(
    load: Load, machine: Machine, budgets: Budgets, groups: Sequence[tuple[Device, ...]], places: Sequence[Residency],
    modes: Sequence[str], least: float = math.inf,
) -> Iterator[Option]:  # fmt: skip
    """The ways under all of some modes, where the mode is to be found.

    Groups are left out that cannot be quicker than others, or than the ``least`` that is known. Where devices were
    named these are the group.
    """
    for devices in _named(load, groups):
        for mode in _worth_trying(load, modes) if _least_of(load, machine, devices) < least else ():
            for way in _in_shares(load, machine, budgets, devices, places, mode):
                # one that has no room in host memory leaves no other out
                least = min(least, way.seconds if way.host <= budgets.of(budgets.host) else math.inf)
                yield way


def _worth_trying(load: Load, modes: Sequence[str]) -> list[str]:
    """The modes that are tried: where a rough answer is enough without rows, which are hardly ever quickest."""
    is_rough = load.work is not None and load.work.is_rough
    return [mode for mode in modes if not is_rough or mode != "row"]


def _named(load: Load, groups: Sequence[tuple[Device, ...]]) -> Sequence[tuple[Device, ...]]:
    """The groups that are tried: that of the devices that were named, if they are of a kind, or all; large ones first.

    As many as there are shares, where these were given. Where a rough answer is enough, all devices of a kind.
    """
    named = load.asked.devices
    if named:
        return [named] if len({one.kind for one in named}) == 1 < len(named) else []
    given = [one for one in groups if len(one) == len(load.asked.shares)] if load.asked.shares else groups
    ordered = sorted(given, key=len, reverse=True)
    if load.work is None or not load.work.is_rough:
        return ordered
    largest: dict[str, tuple[Device, ...]] = {}
    for one in ordered:
        largest.setdefault(one[0].kind, one)
    return list(largest.values())


def _least_of(load: Load, machine: Machine, devices: Sequence[Device]) -> float:
    """The least seconds of a picture that some devices can take: as if each did its part of all, and nothing else."""
    chain, times = load.called(False)
    rates = [1 / max(1e-12, chain.seconds(machine.speeds[device])) for device in devices]
    return times / sum(rates)


def _in_shares(
    load: Load, machine: Machine, budgets: Budgets, devices: tuple[Device, ...], places: Sequence[Residency], mode: str
) -> Iterator[Option]:
    """The ways under a mode in shares by speed; where weights are shared out and do not fit so, by memory too."""
    some = list(_ways(load.under(mode), machine, budgets, devices, places))
    yield from some
    stays = any(way.residency is Residency.DEVICE for way in some)
    rooms = budgets.rooms(devices)
    if stays or mode != "tensor" or load.asked.shares or max(rooms) <= _UNEVEN * min(rooms):
        return
    shares = tuple(float(max(1, round(_PARTS * room / max(rooms)))) for room in rooms)
    for way in _ways(load.under(mode, shares), machine, budgets, devices, places):
        yield replace(way, shares=shares)


def _ways(
    load: Load, machine: Machine, budgets: Budgets, devices: tuple[Device, ...], places: Sequence[Residency]
) -> Iterator[Option]:
    """The ways in which one group computes a component together under the mode that was asked for."""
    if load.asked.shares and len(load.asked.shares) != len(devices):
        return
    work = _work(load, devices, machine)
    if isinstance(work, Work):
        for residency in residencies(load, devices, machine.host):
            if load.takes_turns and residency is not Residency.DEVICE:
                continue
            if load.asked.residency is None and residency not in places:
                continue
            if load.asked.mode == "row" and residency is not Residency.DEVICE:
                continue  # of rows that come and go nothing is foreseen
            for amounts in _amounts(load, residency, devices, budgets, work):
                found = group_option(load, machine, budgets, devices, residency, work, amounts)
                if found is None and residency is Residency.DEVICE:
                    found = _in_room(load, machine, budgets, devices, work.whole)
                if found is not None:
                    yield found


def _amounts(
    load: Load, residency: Residency, devices: Sequence[Device], budgets: Budgets, work: Work
) -> list[Amounts]:
    """How much of weights that come and go may stay on devices, of those that each device of a group has all of.

    What stays is not brought for each picture.
    """
    if load.asked.residency is not None:
        return [load.asked.amounts]
    if residency is Residency.DEVICE or shares_out_weights(load.asked.mode):
        return [ALIKE]
    rooms = budgets.less(load.more).rooms(devices)
    room = min(has - alive for has, alive in zip(rooms, work.alive, strict=True))
    return [
        Amounts(on_device) for on_device in parts_worth(load, [0, *(int(room * part) for part in _PARTS_ON_DEVICES)])
    ]


def _in_room(load: Load, machine: Machine, budgets: Budgets, devices: tuple[Device, ...], whole: int) -> Option | None:
    """The way in which a group computes a component with all weights on devices, in states that are solved for so.

    What devices have room for is taken in steps, so that few states are solved for; none where the ``whole`` bytes of
    weights have no room.
    """
    if load.work is None or load.takes_turns or load.work.is_rough or load.asked.mode == "row":
        return None
    step = max(1, max(budgets.rooms(devices)) // _STEPS)
    room = tuple((budgets.of(one) - load.more.get(one, 0)) // step * step for one in devices)
    # of weights that are shared out in groups, at least two have all of them
    most = {"tensor": sum(room), "batch+tensor": sum(room) // 2}.get(load.asked.mode, min(room))
    if whole >= most:
        return None
    work = load.work.over(devices, room)
    if isinstance(work, NotPossible):
        return None
    key = "in room", load.asked, devices, budgets.rooms(devices)
    return load.once(machine, key, lambda: _find(load, machine, budgets, devices, Residency.DEVICE, work))


def group_option(
    load: Load, machine: Machine, budgets: Budgets, devices: tuple[Device, ...], residency: Residency, work: Work,
    amounts: Amounts = ALIKE,
) -> Option | None:  # fmt: skip
    """The way in which a group computes a component together with weights that rest somewhere; None without room.

    ``amounts`` of them rest on devices, or in the host's memory, where the others rest as ``residency`` says.
    """
    key = "together", load.asked, devices, budgets.rooms(devices), residency, amounts
    return load.once(machine, key, lambda: _find(load, machine, budgets, devices, residency, work, amounts))


def why_no_group(
    load: Load, machine: Machine, budgets: Budgets, places: Sequence[Residency],
    groups: Sequence[tuple[Device, ...]] | None = None,
) -> str:  # fmt: skip
    """Why no group of devices computes a component together as was asked, or none of some; nothing where one does."""
    groups = groups_of(machine, budgets) if groups is None else groups
    if next(group_options(load, machine, budgets, groups, places), None) is not None:
        return ""
    works = [(devices, _work(load, devices, machine)) for devices in groups]
    if not works:
        return "there are no two devices of one kind"
    if load.asked.mode == "row" and load.asked.residency not in (None, Residency.DEVICE):
        return "rows stay on their devices, and its weights were to rest elsewhere"
    rooms = [(devices, work) for devices, work in works if isinstance(work, Work)]
    if not rooms:
        return next(work.reason for _, work in works if isinstance(work, NotPossible))
    needs = [one for devices, work in rooms for one in zip(devices, work.weights, work.alive, strict=True)]
    device, weights, alive = min(needs, key=lambda one: one[1] + one[2] - budgets.of(one[0]))
    turns = "its calls take turns on devices that hold all of it, and " if load.takes_turns else ""
    return (
        f"{turns}no devices of one kind have room for it: each needs {format_bytes(weights)} of weights, or what it "
        f"reads of them at once, and {format_bytes(alive)} of values, and {device} has "
        f"{format_bytes(budgets.of(device))}"
    )


def why_no_mode(load: Load) -> str:
    """Why no devices can compute a component together under any mode, whatever there is of them; nothing if they may.

    One that no call was traced of is nothing to be told of.
    """
    if load.work is None:
        return _BY_PARTS
    return "its sizes are dynamic" if any(program.symbols for program, _ in load.work.calls) else ""


def _work(load: Load, devices: Sequence[Device], machine: Machine) -> Work | NotPossible:
    if load.work is None:
        return NotPossible(load.asked.mode, _BY_PARTS)
    return _in_turns(load, devices, machine) if load.takes_turns else load.work.over(devices)


def _in_turns(load: Load, devices: Sequence[Device], machine: Machine) -> Work | NotPossible:
    """What a component takes of which each device, or each group, holds all, and whose calls take turns."""
    inner, count = inner_mode(load.asked.mode), len(devices)
    if inner and load.work is not None:
        return _groups_in_turns(load, devices, replace(load.work, mode=inner))
    if count > load.parts:
        reason = f"{count} devices are more than the {load.parts} calls of it that are independent of each other"
        return NotPossible(load.asked.mode, reason)
    chain, times = load.called(False)
    slowest = max(chain.seconds(machine.speeds[device]) for device in devices)
    rounds = times / load.parts * -(-load.parts // count)
    return Work(rounds * slowest, (chain.nbytes,) * count, (chain.live,) * count, chain.nbytes)


def _groups_in_turns(load: Load, devices: Sequence[Device], work: GroupWork) -> Work | NotPossible:
    """The same of groups, each of which computes a call together."""
    count = turn_count(len(devices), load.parts)
    if count < 2:
        reason = f"{len(devices)} devices form no groups of two or more for {load.parts} calls that are independent"
        return NotPossible(load.asked.mode, reason)
    each = [work.over(devices[one]) for one in stretches(len(devices), count)]
    refused = next((one for one in each if isinstance(one, NotPossible)), None)
    if refused is not None:
        return NotPossible(load.asked.mode, refused.reason)
    works = [one for one in each if isinstance(one, Work)]
    return Work(
        max(one.seconds for one in works) / load.parts * -(-load.parts // count),
        tuple(nbytes for one in works for nbytes in one.weights),
        tuple(nbytes for one in works for nbytes in one.alive),
        works[0].whole,
    )


def _find(
    load: Load, machine: Machine, budgets: Budgets, devices: tuple[Device, ...], residency: Residency, work: Work,
    amounts: Amounts = ALIKE,
) -> Option | None:  # fmt: skip
    """What devices have of a component, each as if it were alone with its part for as long as all of them work."""
    parts = [_part_of(load, machine, devices, member, residency, work) for member in range(len(devices))]
    each = _each(parts, machine, budgets, residency, work, amounts)
    longer = _longer(load, machine, each) if each else 1.0
    if longer > 1:
        each = _each([replace(part, longer=longer) for part in parts], machine, budgets, residency, work, amounts)
    return _together(load, machine, each, work, amounts) if each else None


def _each(
    parts: Sequence[Load], machine: Machine, budgets: Budgets, residency: Residency, work: Work, amounts: Amounts
) -> list[Option]:
    """What each device of a group has of a component; nothing where one has no room."""
    each = []
    for part, has in zip(parts, work.weights, strict=True):
        of = max(1, work.whole)
        of_part = Amounts(amounts.on_device * has // of, amounts.in_memory * has // of)
        found = option(part, machine, budgets, part.asked.devices, residency, False, amounts=of_part)
        if found is None:
            return []
        each.append(found)
    return each


def _longer(load: Load, machine: Machine, each: Sequence[Option]) -> float:
    """How many times as long what devices of a group stream takes as on each alone, for it comes to them at once."""
    if load.asked.mode == "row":
        return 1.0
    streamed = {one.devices[0]: sum(one.streamed.values()) for one in each}
    speeds, is_disk = machine.speeds, each[0].residency is Residency.DISK
    loading = [one for one, nbytes in streamed.items() if nbytes and (is_disk or one != machine.host)]
    alone = {one: streamed[one] / speeds.loading(one, is_disk) for one in loading}
    return speeds.from_disk_at_once(alone) if is_disk else speeds.at_once(machine.host, alone)


def _part_of(
    load: Load, machine: Machine, devices: Sequence[Device], member: int, residency: Residency, work: Work
) -> Load:
    """What one device of a group has of a component, as a component of its own on that device."""
    device, whole = devices[member], load.called(False)[0]
    part = work.weights[member] / max(1, work.whole)
    time = work.seconds / max(1e-12, load.times * whole.seconds(machine.speeds[device]))
    chain = _scaled(whole, part, time, work.alive[member])
    unread = 0 if member else load.unread
    return replace(load, chain=chain, tiles=None, nbytes=chain.nbytes + unread, asked=Asked((device,), residency))


def _scaled(chain: Chain, part: float, time: float, alive: int) -> Chain:
    """A chain with a part of its weights, which takes so many times as long, and has the same alive all the time."""

    def scaled(one: Part) -> Part:
        return replace(
            one,
            nbytes=int(one.nbytes * part),
            largest=int(one.largest * part),
            finest=None if one.finest is None else int(one.finest * part),
            live=alive,
            work=tuple((cost, count * time) for cost, count in one.work),
        )

    return replace(chain, rest=scaled(chain.rest), parts=tuple(map(scaled, chain.parts)))


def _together(load: Load, machine: Machine, each: Sequence[Option], work: Work, amounts: Amounts) -> Option:
    """The ways of all devices of a group as one; from the host's memory weights are brought to all at once.

    From disk they come to one after another. Of the ``amounts`` what rests on devices does on those that have it, and
    what rests in memory does once.
    """
    residency, alone = each[0].residency, {one.devices[0]: one.bringing for one in each}
    is_at_once = residency is Residency.HOST and load.asked.mode != "row"
    bringing = machine.speeds.bringing(machine.host, alone) if is_at_once else sum(alone.values())
    nbytes = max(load.nbytes, work.whole)
    on_device = min(amounts.on_device, nbytes) if residency is not Residency.DEVICE else 0
    in_memory = min(amounts.in_memory, nbytes - on_device) if residency is Residency.DISK else 0
    of_blocks = zip(*(one.rests for one in each), strict=True)
    rests = tuple(max(some, key=lambda rest: rest is not Residency.DEVICE) for some in of_blocks)
    return Option(
        load.name, load.phase, tuple(one.devices[0] for one in each), tuple(one.ranges[0] for one in each), rests,
        residency, False, max(one.seconds - one.bringing for one in each) + bringing, bringing,
        stays=_sum([one.stays for one in each]),
        comes=_sum([one.comes for one in each]),
        live=_sum([one.live for one in each]),
        streamed=_sum([one.streamed for one in each]),
        weights=_sum([one.weights for one in each]),
        host=nbytes - on_device if residency is Residency.HOST else in_memory,
        amounts=Amounts(on_device, in_memory),
        mode=load.asked.mode,
    )  # fmt: skip


def _sum(some: Sequence[Mapping[Device, int]]) -> dict[Device, int]:
    found: Counter[Device] = Counter()
    for one in some:
        found.update(one)
    return dict(found)
