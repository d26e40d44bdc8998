"""What a picture would take with more memory or faster links: the search for a placement, made again with those."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace

from ..compiler.spec.devices import Device
from ..compiler.spec.speeds import Speed, Speeds
from ..compiler.spec.units import format_bytes
from ..fitting.decide import Decision
from ..passes.fit.search import search

MORE = 2 * 2**30
"""The bytes of memory that are tried more of each device."""

_FASTER = 2
_SAME = 0.99


def what_if(decision: Decision) -> Iterator[str]:
    """A sentence for each device with 2 GiB more, and one for links twice as fast, where a picture takes less then.

    Each needs a search.
    """
    now = decision.solution.seconds
    for device, nbytes in decision.budgets.devices.items():
        more = replace(decision.budgets, devices={**decision.budgets.devices, device: nbytes + MORE})
        found = search(decision.loads, decision.machine, more)
        yield from _said(f"{format_bytes(MORE)} more on {device}", now, found.seconds if found else None)
    faster = replace(decision.machine, speeds=with_links(decision.machine.speeds, _FASTER))
    found = search(decision.loads, faster, decision.budgets)
    yield from _said("links twice as fast", now, found.seconds if found else None)


def with_links(speeds: Speeds, times: float) -> Speeds:
    """The speeds with links between devices and the host so many times as fast."""
    devices: Mapping[Device, Speed] = {
        device: speed
        if device.is_host
        else replace(speed, link=times * speed.link, peer=speed.peer and times * speed.peer)
        for device, speed in speeds.devices.items()
    }
    return replace(speeds, devices=devices)


def _said(what: str, now: float, then: float | None) -> Iterator[str]:
    if then is not None and then <= _SAME * now:
        yield f"With {what} a picture would take {1 - then / now:.0%} less time."
