"""What takes the space where nothing fits: one cause, with the bytes that are needed and those that are there."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from ...compiler.devices.device import Device
from ...compiler.spec.residency import Residency
from ...compiler.units import format_bytes
from .chain import Chain
from .machine import Machine
from .options import residencies
from .search import search
from .solution import peaks
from .workload import Budgets, Load

_STEPS = 6  # in which the least of a device is looked for


@dataclass(frozen=True)
class Lack:
    """The component that does not fit, the least bytes that it needs on a device, and what that offers.

    ``weights`` and ``values`` are parts of the ``least``, where they are known. Without a component, all fit alone and
    not together; the least is what they need there together, or nothing where more of one device does not help.
    """

    component: str
    device: Device
    least: int
    weights: int
    values: int
    offered: int


def lacking(loads: Sequence[Load], machine: Machine, budgets: Budgets) -> Lack:
    """What takes the space: the component that does not fit alone, by most; or the device where all fit alone."""
    alone = [load for load in loads if search([load], machine, budgets) is None]
    if not alone:
        return together(loads, machine, budgets)
    lacks = [least(load, machine, budgets) for load in alone]
    worst = max(lacks, key=lambda lack: lack.least - lack.offered)
    if worst.least > worst.offered:
        return worst
    first = max(alone, key=lambda load: load.nbytes)  # for which some other device is too small
    found = together([first], machine, budgets)
    return replace(found, component=first.name) if found.least else found


def together(loads: Sequence[Load], machine: Machine, budgets: Budgets) -> Lack:
    """The device of which components need least more to fit together, with all else as it is, and what they need there.

    A device of no bytes but the largest where more of one alone does not help.
    """
    lacks = [_least_of(device, loads, machine, budgets) for device in machine.devices]
    found = [lack for lack in lacks if lack is not None]
    if found:
        return min(found, key=lambda lack: lack.least - lack.offered)
    largest = max(machine.devices, key=budgets.of)
    return Lack("", largest, 0, 0, 0, budgets.of(largest))


def _least_of(device: Device, loads: Sequence[Load], machine: Machine, budgets: Budgets) -> Lack | None:
    """What components need of a device with all others as they are, within a few per cent; None where no size helps."""
    offered = budgets.of(device)

    def peak(nbytes: int) -> int | None:
        given = replace(budgets, devices={**budgets.devices, device: nbytes})
        found = search(loads, machine, given)
        return max(n for (_, one), n in peaks(found, given).items() if one == device) if found else None

    low, high = offered, peak(budgets.devices[device] + sum(load.nbytes + load.chain.live for load in loads))
    if high is None:
        return None
    for _ in range(_STEPS):
        middle = (low + high) // 2
        found = peak(middle) if middle > low else None
        low, high = (middle, high) if found is None else (low, min(high, max(found, low + 1)))
    return Lack("", device, high, 0, 0, offered)


def least(load: Load, machine: Machine, budgets: Budgets) -> Lack:
    """The least that a component needs on its main device, in the way that needs least, and what that offers."""
    devices = load.asked.devices or max([(one,) for one in machine.devices], key=lambda one: budgets.of(one[0]))
    found = []
    for residency in residencies(load, devices, machine.host):
        for tiled in load.ways():
            chain, _ = load.way(tiled)
            found.append((_held(chain, residency, devices, budgets), chain.live))
    weights, values = min(found, key=sum)
    return Lack(load.name, devices[0], weights + values, weights, values, budgets.of(devices[0]))


def _held(chain: Chain, residency: Residency, devices: Sequence[Device], budgets: Budgets) -> int:
    """The least bytes of weights on the main device: of the finest stages where they come and go."""
    if not residency.stages_on(devices[0]):
        others = sum(budgets.of(device) for device in devices[1:])
        return chain.rest.nbytes + max(0, sum(part.nbytes for part in chain.parts) - others)
    if len(devices) == 1:
        return chain.least
    return chain.rest.least + max((part.least for part in chain.parts), default=0)


def problem_of(lack: Lack, loads: Sequence[Load], budgets: Budgets, total: Mapping[Device, int]) -> str:
    """The sentence of a refusal: what takes the space, what there is, and why."""
    on = f"on {lack.device}, which has {format_bytes(lack.offered)}"
    why = budgets.why.get(lack.device, "")
    of = total.get(lack.device, lack.offered)
    on += f" of {format_bytes(of)}" if of != lack.offered else ""
    on += f" ({why})" if why else ""
    if lack.component:
        parts = f": {format_bytes(lack.weights)} of weights and {format_bytes(lack.values)} of values"
        return f"{lack.component} needs at least {format_bytes(lack.least)} {on}{parts if lack.weights else ''}"
    if lack.least:
        return f"the components fit one by one, but not together: they need at least {format_bytes(lack.least)} {on}"
    resting = format_bytes(sum(load.nbytes for load in loads))
    offers = ", ".join(f"{device} {format_bytes(budgets.of(device))}" for device in budgets.devices)
    few = "the components fit one by one, but not together" if len(loads) > 1 else f"{loads[0].name} does not fit"
    return f"{few} in any way that was asked for: {resting} of weights, and what may be used is {offers}"
