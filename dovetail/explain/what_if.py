"""What a picture would take with more memory, which is searched again, or where it is planned with faster links."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import replace

from ..compiler.devices.device import Device
from ..compiler.devices.speeds import Speed, Speeds
from ..compiler.units import format_bytes
from ..fitting.decide import Decision, joined
from ..passes.fit.search import search
from ..planning.table import Account

MORE = 2 * 2**30
"""The bytes of memory that are tried more of each device."""

_FASTER = 2
_SAME = 0.99


def with_more_memory(decision: Decision) -> Iterator[str]:
    """A sentence for each device with 2 GiB more, where a picture takes less then.

    Each needs a search; devices that are alike and have the same components have one. Nothing is said of devices over
    which something is split by rows, for a search counts its time as that of a split by layers.
    """
    now, ways = decision.solution.seconds, decision.solution.ways
    by_rows = {device for name in decision.by_rows if name in ways for device in ways[name].devices}
    for devices in _alike(decision):
        if not by_rows.isdisjoint(devices):
            continue
        nbytes = decision.budgets.of(devices[0]) + MORE
        more = replace(decision.budgets, devices={**decision.budgets.devices, devices[0]: nbytes})
        found = search(decision.loads, decision.machine, more)
        names = f"any of {joined(devices)}" if len(devices) > 1 else str(devices[0])
        yield from _said(f"{format_bytes(MORE)} more on {names}", now, found.seconds if found else None)


def with_faster_links(account: Account) -> Iterator[str]:
    """A sentence for links twice as fast, where a picture takes less then by the same schedules."""
    faster = replace(account, speeds=with_links(account.speeds, _FASTER))
    yield from _said("links twice as fast", account.seconds, faster.seconds)


def _alike(decision: Decision) -> list[list[Device]]:
    """The devices, those together that are of a kind and have the same components, first or behind the first."""
    kinds, ways = decision.machine.kinds(decision.budgets), decision.solution.ways
    found: dict[object, list[Device]] = defaultdict(list)
    for device in decision.budgets.devices:
        parts = tuple((name, way.devices[0] == device) for name, way in ways.items() if device in way.devices)
        found[kinds.get(device), parts].append(device)
    return list(found.values())


def with_links(speeds: Speeds, times: float) -> Speeds:
    """The speeds with links between devices, the host and processes so many times as fast."""
    devices: Mapping[Device, Speed] = {
        device: speed
        if device.is_host
        else replace(speed, link=times * speed.link, peer=speed.peer and times * speed.peer)
        for device, speed in speeds.devices.items()
    }
    ways = {pair: times * rate for pair, rate in speeds.ways.items()}
    networks = {pair: times * rate for pair, rate in speeds.networks.items()}
    return replace(speeds, devices=devices, ways=ways, networks=networks)


def _said(what: str, now: float, then: float | None) -> Iterator[str]:
    if now and then is not None and then <= _SAME * now:
        yield f"With {what} a picture would take {1 - then / now:.0%} less time."
